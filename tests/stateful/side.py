"""One of two sides: a session on one backend, the process that has it, and what is checked after each step."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harness.codec import encode_str
from harness.context import BACKGROUND, Context
from harness.errors import HarnessError
from harness.ids import Uuid7Generator
from harness.operation.events import EntryAdded, HarnessEvent, UsageEvent
from harness.operation.results import OpenOperation
from harness.result import Err, Ok
from harness.runtime.agent_lane import AgentLane
from harness.runtime.harness import AgentHarness
from harness.session.session import Session
from harness.testing.audit import CommitAudit
from harness.testing.content import Content
from harness.testing.crash import CrashStorage, PointKind, Process
from harness.testing.invariants import (
    branch_violations,
    changes,
    inventory_violations,
    projection_violations,
    totals_violations,
    violations,
)
from harness.testing.judging import run_problems
from harness.testing.virtual_clock import VirtualClock, virtual_environment
from tests.stateful.cast import Cast
from tests.stateful.places import MakePlace, Place

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_SEQ = re.compile(r"\bseq=\d+")
# Streams and progress are committed beside the work, and tools run beside each other: where they
# stand when a commit of the work is made differs from disk to disk.
_BESIDE = re.compile(r"append pi\.pending\.assistant_frame|set pi\.pending\.tool_output")
_POINTS: frozenset[PointKind] = frozenset(("before commit", "after commit"))
_seeds = itertools.count(1)


class Life(Process):
    """A process that dies at points which are the same on every backend."""

    async def point(self, kind: PointKind, label: str) -> None:
        """See `Process.point`."""
        if self.alive and _BESIDE.match(label):
            return
        await super().point(kind, label)


@dataclass(slots=True)
class Call:
    """A public call that was made, and what came of it."""

    name: str
    task: asyncio.Task[Any]
    result: str | None = None


@dataclass(slots=True)
class Report:
    """What a step looked like from outside; two sides compare equal."""

    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    problems: list[str] = field(default_factory=list[str])


class Side:
    """Plays steps on one backend. Every coroutine here runs outside of the process that may die."""

    def __init__(self, name: str, make: MakePlace) -> None:
        self.name = name
        environment = virtual_environment(next(_seeds), auto_advance=False)
        assert isinstance(environment.clock, VirtualClock)
        self.environment = environment
        self.clock = environment.clock
        self.place: Place = make(environment)
        self.cast = Cast(self.clock)
        self.calls: list[Call] = []
        self.queued: list[str] = []
        self.content = Content.of_records(())
        self.deaths = 0
        self._names: dict[str, str] = {}
        self._log: list[str] = []
        self._events: list[HarnessEvent] = []
        self.problems: list[str] = []

    @property
    def harness(self) -> AgentHarness:
        """The harness of the living process."""
        return self._harness

    def new_id(self) -> str:
        """An id from outside of the process; the generators of both sides go alike."""
        assert isinstance(self.environment.ids, Uuid7Generator)
        return self.environment.ids.next()

    # Life and death

    async def begin(self) -> None:
        """Make the session and attach."""
        self._inner = await self.place.create()
        self.content = await self.place.content()
        self.audit = CommitAudit(self.content)
        await self._attach()

    async def _attach(self) -> None:
        self.process = Life(None, _POINTS, self.clock)
        self._attached: asyncio.Future[contextvars.Context] = (
            asyncio.get_running_loop().create_future()
        )
        self._ended = asyncio.Event()
        self._events.clear()
        self.audit.entries.clear()
        self.audit.usage.clear()
        life = partial(self._life, self.process, self._inner)
        self._living = asyncio.get_running_loop().create_task(self.process.live(life))
        await asyncio.wait((self._attached, self._living), return_when=asyncio.FIRST_COMPLETED)
        if self._living.done():
            await self._living
        await self._settle()

    async def _life(self, process: Life, inner: Session) -> None:
        storage = CrashStorage(inner.storage, process, self.audit)
        session = Session(storage, inner.metadata, self.environment)
        harness, found = await AgentHarness.create(session, self.cast.options(), BACKGROUND)
        self._harness, self._found = harness, found
        harness.events.on("*", self._heard)
        self._attached.set_result(contextvars.copy_context())
        await self._ended.wait()

    def _heard(self, event: HarnessEvent, context: Context) -> None:
        self._events.append(event)

    @property
    def found(self) -> list[OpenOperation]:
        """What the last attachment reported."""
        return self._found

    async def _resurrect(self) -> None:
        """The process died: bury it, and attach another one."""
        await self._living
        self._log.append(f"died at {self.process.died_at}")
        self.deaths += 1
        await self._collect()
        await self.place.bury()
        self._inner = await self.place.open()
        await self._attach_again()

    async def _attach_again(self) -> None:
        durable = await self.place.content()
        self.problems += self.audit.content.differences(durable)
        await self._attach()
        self.problems += inventory_violations(durable, self._found)

    async def close(self) -> None:
        """Close the harness in good order; the session is nobody's then."""
        await self.run(self._harness.close(BACKGROUND))
        self.deaths += 1  # to what was under way, a close is a death (§4.7)
        self._ended.set()
        await self._living
        await self._collect()
        await self._inner.close(BACKGROUND)

    async def reopen(self) -> None:
        """Attach after `close`."""
        self._inner = await self.place.open()
        await self._attach_again()

    async def start_anew(self) -> None:
        """Attach after `close` to content that is not what was there before."""
        self._inner = await self.place.open()
        self.content = await self.place.content()
        self.audit = CommitAudit(self.content)
        self.queued.clear()
        await self._attach()

    # Calls

    def call(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Make a public call inside the process; what it returns is a fact, when it returns."""
        task = asyncio.get_running_loop().create_task(work, context=self._context())
        self.calls.append(Call(f"{len(self.calls)} {name}", task))

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something inside the process that ends by itself; None when the process dies of it."""
        task = asyncio.get_running_loop().create_task(work, context=self._context())
        await asyncio.wait((task, self._living), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() and not task.cancelled() else None

    def _context(self) -> contextvars.Context:
        return self._attached.result().copy()

    async def lane(self, number: int) -> AgentLane:
        """One of the session's lanes."""
        names = self.content.lanes()
        found = await self._harness.lane(names[number % len(names)], BACKGROUND)
        assert found is not None
        return found

    def entry(self, number: int) -> str | None:
        """One of the entries, newest first; None beyond the oldest."""
        ids = list(self.content.entries)
        return ids[-1 - number] if number < len(ids) else None

    # Steps

    async def step(self, act: Callable[[Side], Coroutine[Any, Any, None]]) -> Report:
        """Do one thing, let everything run until nothing can, look at everything."""
        report = Report()
        await act(self)
        await self._settle()
        while not self.process.alive:
            await self._resurrect()
        await self._collect()
        await self._look(report)
        return report

    async def _settle(self) -> None:
        """Return when nothing in this process can run any more."""
        # Any: the loop has no public way to say that nothing can run.
        loop: Any = asyncio.get_running_loop()
        while self.process.alive:
            await asyncio.sleep(0)
            if self.process.waits:
                await asyncio.sleep(0.000_2)
            elif not loop._ready:
                return
        await self._living

    async def _collect(self) -> None:
        for call in self.calls:
            if call.result is None and call.task.done():
                call.result = self._outcome(call.task)
                self._log.append(f"{call.name}: {call.result}")
            elif call.result is None and not self.process.alive:
                call.result = "lost"

    def _outcome(self, task: asyncio.Task[Any]) -> str:
        if task.cancelled():
            return "lost"
        error = task.exception()
        if isinstance(error, HarnessError):
            return f"raised {type(error).__name__}"
        if error is not None:
            raise error
        match task.result():
            case Ok(value=AgentLane() as lane):
                return f"lane {lane.name}"
            case Ok(value=value) | value if not isinstance(value, Err):
                return self._named(repr(value))
            case Err(error=error):
                return f"Err {self._named(repr(error))}"
            case other:
                return repr(other)

    def _named(self, text: str) -> str:
        """The text with ids replaced by names in the order of their first appearance."""

        def name(found: re.Match[str]) -> str:
            return self._names.setdefault(found.group(), f"id{len(self._names)}")

        return _ID.sub(name, _SEQ.sub("seq=#", text))

    def say(self, text: str) -> None:
        """Note something that both sides must have seen alike."""
        self._log.append(self._named(text))

    async def _look(self, report: Report) -> None:
        before, after = self.content, await self.place.content()
        problems = report.problems
        problems += self.problems
        problems += self.audit.problems
        problems += self.audit.content.differences(after)
        problems += violations(after)
        problems += changes(before, after)
        core = self._harness._core
        problems += projection_violations(after, [lane.projection for lane in core.lanes.values()])
        leaves = [leaf for lane in after.lanes() if (leaf := after.leaf(lane)) is not None]
        older = self.entry(len(self.calls) % 17)
        problems += await branch_violations(
            self._inner.storage, after, leaves if older is None else [*leaves, older]
        )
        problems += await totals_violations(self._inner.storage, after)
        problems += run_problems(self.cast.runs, self.cast.replay_of, self.deaths)
        problems += self._event_problems()
        if core.faulted is not None:
            problems.append(f"§4.8: {core.faulted!r}")
        self.content = after
        self.problems = []
        report.facts = {
            "log": list(self._log),
            "waiting": [call.name for call in self.calls if call.result is None],
            "held": list(self.cast.held),
            "time": self.clock.now_ms(),
            **{key: self._named(encode_str(found)) for key, found in after.plain().items()},
        }
        self._log.clear()

    def _event_problems(self) -> list[str]:
        """35: what this process committed was announced once, in order; and nothing else was."""
        entries = [e.entry.id for e in self._events if isinstance(e, EntryAdded)]
        rows = [e.row.id for e in self._events if isinstance(e, UsageEvent)]
        return [
            f"35: announced {told}, committed {done}"
            for told, done in ((entries, self.audit.entries), (rows, self.audit.usage))
            if told != done
        ]

    async def end(self) -> None:
        """Let go of everything."""
        self.process.kill()
        await self._living
        await self.place.bury()
        for call in self.calls:
            if call.task.done() and not call.task.cancelled():
                call.task.exception()
