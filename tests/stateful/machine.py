"""The state machine: rules draw actions, both sides do them, and after each everything must agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.stateful import actions
from tests.stateful.actions import KEYS, Act
from tests.stateful.cast import WORDS
from tests.stateful.places import MakePlace
from tests.stateful.side import Report, Side

T = TypeVar("T")

LANES = st.integers(0, 2)
ENTRIES = st.integers(0, 12)
SCRIPTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple)
SUMMARIES = st.sampled_from(("say", "flaky", "fail", "down", "hold"))
MODES = st.sampled_from(("all", "one-at-a-time"))


class Stage:
    """Where both sides live: one event loop each, for as long as a test lasts."""

    def __init__(self, places: dict[str, Callable[[], Coroutine[Any, Any, MakePlace]]]) -> None:
        self._places = places
        self._runners = {name: asyncio.Runner() for name in places}
        self.steps = 0

    async def _new(self, name: str) -> Side:
        side = Side(name, await self._places[name]())
        await side.begin()
        return side

    def sides(self) -> list[Side]:
        """A new session on each side."""
        return [self.run(name, self._new(name)) for name in self._places]

    def run(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Run something in a side's loop."""
        return self._runners[name].run(work)

    def close(self) -> None:
        """End the loops."""
        for runner in self._runners.values():
            runner.close()


class Disagreement(AssertionError):
    """Something is wrong on one side, or the sides differ."""


def machine(stage: Stage) -> type[RuleBasedStateMachine]:
    """The machine on a stage; what hypothesis prints of a failure is a script of its methods."""

    class Sessions(RuleBasedStateMachine):
        """Two sessions that live through the same."""

        def __init__(self) -> None:
            super().__init__()
            self._sides = stage.sides()
            self._number = 0
            self._failed = False

        def _do(self, act: Act) -> None:
            stage.steps += 1
            self._number += 1
            self._failed = True
            _agree(self._sides, [stage.run(side.name, side.step(act)) for side in self._sides])
            self._failed = False

        @rule(lane=LANES, script=SCRIPTS)
        def prompt(self, lane: int, script: tuple[str, ...]) -> None:
            self._do(actions.prompt(self._number, lane, script))

        @rule(lane=LANES, script=SCRIPTS)
        def accept(self, lane: int, script: tuple[str, ...]) -> None:
            self._do(actions.accept(self._number, lane, script))

        @rule(lane=LANES, wait=st.booleans(), poll=st.booleans())
        def drive(self, lane: int, wait: bool, poll: bool) -> None:
            self._do(actions.drive(lane, wait=wait, poll=poll))

        @rule(lane=LANES)
        def stale_drive(self, lane: int) -> None:
            self._do(actions.stale_drive(lane))

        @rule(lane=LANES)
        def resume(self, lane: int) -> None:
            self._do(actions.resume(lane))

        @rule(lane=LANES, which=st.sampled_from(("steer", "follow_up", "next_run")), script=SCRIPTS)
        def queue(self, lane: int, which: actions.Queue, script: tuple[str, ...]) -> None:
            self._do(actions.queue(self._number, lane, which, script))

        @rule(lane=LANES, number=st.integers(0, 3))
        def cancel_queued(self, lane: int, number: int) -> None:
            self._do(actions.cancel_queued(lane, number))

        @rule(lane=LANES, drive=st.booleans())
        def abort(self, lane: int, drive: bool) -> None:
            self._do(actions.abort(lane, drive=drive))

        @rule(lane=LANES, kind=st.sampled_from(("message", "shown", "hidden")))
        def append(self, lane: int, kind: str) -> None:
            self._do(actions.append(self._number, lane, kind))

        @rule(lane=LANES, entry=ENTRIES, summary=st.none() | SUMMARIES, label=st.booleans())
        def navigate(self, lane: int, entry: int, summary: str | None, label: bool) -> None:
            self._do(actions.navigate(self._number, lane, entry, summary, label=label))

        @rule(lane=LANES, summary=SUMMARIES)
        def compact(self, lane: int, summary: str) -> None:
            self._do(actions.compact(self._number, lane, summary))

        @rule(name=st.integers(0, 1), entry=ENTRIES)
        def create_lane(self, name: int, entry: int) -> None:
            self._do(actions.create_lane(name, entry))

        @rule(
            lane=LANES,
            model=st.integers(0, 2),
            level=st.sampled_from(("off", "low", "high")),
            tools=st.integers(0, 7),
        )
        def configure(self, lane: int, model: int, level: Any, tools: int) -> None:
            self._do(actions.configure(lane, model, level, tools))

        @rule(steering=MODES, follow_up=MODES)
        def modes(self, steering: Any, follow_up: Any) -> None:
            self._do(actions.modes(steering, follow_up))

        @rule(entry=ENTRIES, remove=st.booleans())
        def describe(self, entry: int, remove: bool) -> None:
            self._do(actions.describe(self._number, entry, remove=remove))

        @rule(lane=LANES, entry=ENTRIES)
        def record_usage(self, lane: int, entry: int) -> None:
            self._do(actions.record_usage(self._number, lane, entry))

        @rule(
            key=st.sampled_from(KEYS),
            what=st.sampled_from(("set", "null", "delete", "append", "append", "drop")),
        )
        def store(self, key: str, what: str) -> None:
            self._do(actions.store(self._number, key, what))

        @rule(lane=LANES, key=st.sampled_from(KEYS), limit=st.integers(1, 4), entry=ENTRIES)
        def read(self, lane: int, key: str, limit: int, entry: int) -> None:
            self._do(actions.read(lane, key, limit, entry))

        @rule(number=st.integers(0, 2))
        def release(self, number: int) -> None:
            self._do(actions.release(number))

        @rule()
        def advance(self) -> None:
            self._do(actions.advance())

        @rule()
        def kill(self) -> None:
            self._do(actions.kill())

        @rule(point=st.integers(1, 12))
        def doom(self, point: int) -> None:
            self._do(actions.doom(point))

        @rule()
        def reopen(self) -> None:
            self._do(actions.reopen())

        @rule(entry=ENTRIES, kind=st.sampled_from(("tree", "at", "before")), move=st.booleans())
        def fork(self, entry: int, kind: Any, move: bool) -> None:
            self._do(actions.fork(entry, kind, move=move))

        @rule(drop=st.sampled_from(("nothing", "custom", "elements")))
        def rewrite(self, drop: Any) -> None:
            self._do(actions.rewrite(drop))

        def teardown(self) -> None:
            try:
                if not self._failed:
                    self._finish()
            finally:
                for side in self._sides:
                    stage.run(side.name, side.end())

        def _finish(self) -> None:
            """Everything that is open comes to an end, and leaves nothing."""
            for _ in range(60):
                if not any(self._busy(side) for side in self._sides):
                    break
                for lane in range(3):
                    self._do(actions.drive(lane, wait=True, poll=True))
                self._do(actions.release(0))
                self._do(actions.advance())
            else:
                raise Disagreement(f"still open: {[self._busy(side) for side in self._sides]}")

        @staticmethod
        def _busy(side: Side) -> list[str]:
            return [lane for lane in side.content.lanes() if side.content.current(lane) is not None]

    return Sessions


def _agree(sides: list[Side], reports: list[Report]) -> None:
    wrong = [
        f"{side.name}: {problem}"
        for side, report in zip(sides, reports, strict=True)
        for problem in report.problems
    ]
    first, second = (report.facts for report in reports)
    wrong += [
        f"{what} differs\n  {sides[0].name}: {first[what]}\n  {sides[1].name}: {second[what]}"
        for what in first
        if first[what] != second[what]
    ]
    if wrong:
        raise Disagreement("\n".join(wrong))
