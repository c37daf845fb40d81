"""A place that becomes free goes to whoever has least, in the order of asking."""

from __future__ import annotations

from workers.slots import Slot, Slots, TenantLines


def test_a_free_place_is_granted_at_once_and_without_a_call() -> None:
    called: list[str] = []
    slots = Slots(1)
    first = slots.ask("a", lambda: called.append("first"))
    second = slots.ask("a", lambda: called.append("second"))
    assert (first.granted, second.granted, slots.free) == (True, False, 0)
    first.give_back()
    assert second.granted
    assert called == ["second"]
    second.give_back()
    second.give_back()
    first.give_back()
    assert slots.free == 1


def test_one_request_waits_for_one_place_whatever_another_tenant_asked_before() -> None:
    slots = Slots(3)
    running = [slots.ask("crowd") for _ in range(3)]
    waiting = [slots.ask("crowd") for _ in range(5_000)]
    lone = slots.ask("lone")
    running[1].give_back()
    assert lone.granted
    assert not any(slot.granted for slot in waiting)
    running[0].give_back()
    assert [slot.granted for slot in waiting[:2]] == [True, False]


def test_tenants_share_what_there_is() -> None:
    slots = Slots(4)
    asked: dict[str, list[Slot]] = {"a": [], "b": []}
    asked["a"] = [slots.ask("a") for _ in range(10)]
    asked["b"] = [slots.ask("b") for _ in range(10)]
    while sum(slot.granted and not slot.over for slot in asked["b"]) < 2:
        next(slot for slot in asked["a"] if slot.granted and not slot.over).give_back()
    for tenant in ("a", "b", "a", "b"):
        next(slot for slot in asked[tenant] if slot.granted and not slot.over).give_back()
        held = [sum(s.granted and not s.over for s in asked[t]) for t in ("a", "b")]
        assert held == [2, 2]


def test_who_leaves_the_line_is_passed_over() -> None:
    slots = Slots(1)
    first = slots.ask("a")
    gone, stays = slots.ask("a"), slots.ask("a")
    gone.give_back()
    first.give_back()
    assert (gone.granted, stays.granted, slots.free) == (False, True, 0)


def test_each_end_of_a_tenants_pass_calls_one_who_waits_for_it() -> None:
    lines = TenantLines()
    called: list[str] = []

    def one() -> None:
        called.append("one")

    def two() -> None:
        called.append("two")

    for call in (one, two, one):
        lines.wait("a", call)
    lines.ended("b")
    assert called == []
    for _ in range(3):
        lines.ended("a")
    assert called == ["one", "two"]


def test_who_leaves_a_tenants_line_is_not_called_for_and_not_kept() -> None:
    called: list[str] = []
    lines = TenantLines()

    def first() -> None:
        called.append("first")

    def second() -> None:
        called.append("second")

    lines.wait("t", first)
    lines.wait("t", second)
    lines.leave("t", first)
    lines.leave("t", first)
    lines.ended("t")
    assert called == ["second"]
    lines.wait("t", first)
    lines.leave("t", first)
    lines.leave("nobody", first)
    assert not lines._waiting
