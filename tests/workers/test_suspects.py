"""One suspect at a time: tenants take turns, the oldest first, and no turn is for ever."""

from __future__ import annotations

from harness.testing.virtual_clock import VirtualClock
from workers.suspects import Suspects, Turn


class Line:
    """A line on a clock that the test moves, and who was called."""

    def __init__(self, alone_ms: int = 1_000) -> None:
        self.clock = VirtualClock(0, auto_advance=False)
        self.suspects = Suspects(self.clock, alone_ms)
        self.called: list[str] = []

    def ask(self, name: str, tenant: str = "t") -> Turn:
        return self.suspects.ask(tenant, lambda: self.called.append(name))

    def open(self, *turns: Turn) -> list[bool]:
        """Which of them may begin now."""
        return [turn.opens_at <= self.clock.now_ms() for turn in turns]


def test_one_at_a_time_the_oldest_first() -> None:
    line = Line()
    first, second, third = line.ask("first"), line.ask("second"), line.ask("third")
    assert line.open(first, second, third) == [True, False, False]
    first.begin()
    assert line.open(second, third) == [False, False]
    assert line.suspects.waiting == 2
    first.give_back()
    first.give_back()
    assert line.called == ["second"]
    assert line.open(second, third) == [True, False]
    second.begin()
    second.give_back()
    assert line.called == ["second", "third"]
    assert line.open(third) == [True]


def test_a_turn_that_lasts_keeps_nobody_waiting_any_more() -> None:
    line = Line(alone_ms=30_000)
    long, second, third = line.ask("long"), line.ask("second"), line.ask("third")
    long.begin()
    line.clock.advance(29.9)
    assert line.open(second, third) == [False, False]
    assert second.opens_at == 30_000
    line.clock.advance(0.1)
    assert line.open(second, third) == [True, False]
    second.begin()
    # The end of the first is no end of the second's turn.
    long.give_back()
    assert line.called == []
    assert line.open(third) == [False]
    second.give_back()
    assert line.called == ["third"]


def test_who_is_first_and_has_no_place_to_be_driven_in_keeps_the_others_only_for_a_moment() -> None:
    line = Line()
    first, second = line.ask("first"), line.ask("second")
    line.clock.advance(1)
    assert line.open(first, second) == [True, True]
    second.begin()
    assert line.open(first) == [False]
    second.give_back()
    assert line.called == ["first"]
    assert line.open(first) == [True]


def test_tenants_take_turns() -> None:
    line = Line()
    crowd = [line.ask(f"a{number}", "a") for number in range(3)]
    lone = line.ask("b0", "b")
    crowd[0].begin()
    crowd[0].give_back()
    assert line.called == ["b0"]
    lone.begin()
    late = line.ask("b1", "b")
    lone.give_back()
    assert line.called == ["b0", "a1"]
    crowd[1].begin()
    crowd[1].give_back()
    assert line.called == ["b0", "a1", "b1"]
    assert line.open(late, crowd[2]) == [True, False]


def test_who_leaves_the_line_is_passed_over() -> None:
    line = Line()
    running, gone, stays = line.ask("running"), line.ask("gone"), line.ask("stays")
    running.begin()
    gone.give_back()
    running.give_back()
    assert line.called == ["stays"]
    assert line.open(stays) == [True]
    stays.give_back()
    assert line.suspects.waiting == 0
