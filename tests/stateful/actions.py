"""What a stateful test does: each action is the same words on both sides, numbers stand for lanes, entries, queued items."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from harness.codec import decode
from harness.context import BACKGROUND
from harness.entries import CustomEntry, Entry
from harness.messages import ThinkingLevel, UserMessage
from harness.operation.results import QueuedEntry
from harness.result import Ok
from harness.runtime.agent_lane import AgentLane
from harness.runtime.drive import DriveOptions
from harness.runtime.requests import NavigateOptions, NavigationRequest, PromptRequest
from harness.session.fork import BranchFork, TreeFork
from harness.session.rewrite import Keep
from harness.session.tree import BranchQuery, EntryQuery
from harness.settings import QueueMode
from harness.storage.address import list_of, value
from harness.storage.protocol import ListRead
from harness.storage.records import ElementRecord
from harness.testing.invariants import violations
from harness.usage import Usage
from tests.stateful.cast import MODELS, TOOLS
from tests.stateful.side import Side

Act = Callable[[Side], Coroutine[Any, Any, None]]
Queue = Literal["steer", "follow_up", "next_run"]
KEYS = ("a", "b", "é")


def prompt(number: int, lane: int, script: tuple[str, ...]) -> Act:
    """Accept and drive a run."""

    async def act(side: Side) -> None:
        found = await side.lane(lane)
        side.call("prompt", found.prompt(f"p{number}: {' '.join(script)}", BACKGROUND))

    return act


def accept(number: int, lane: int, script: tuple[str, ...]) -> Act:
    """Accept a run that nobody drives yet."""

    async def act(side: Side) -> None:
        found = await side.lane(lane)
        request = PromptRequest(prompt=f"p{number}: {' '.join(script)}", operation_id=side.new_id())
        side.call("accept", found.accept(request, BACKGROUND))

    return act


def drive(lane: int, *, wait: bool, poll: bool) -> Act:
    """Drive what is open; on an idle lane, what was open last."""

    async def act(side: Side) -> None:
        found = await side.lane(lane)
        side.call("drive", found.drive(_options(side, found, wait=wait, poll=poll), BACKGROUND))

    return act


def _options(side: Side, lane: AgentLane, *, wait: bool, poll: bool) -> DriveOptions:
    return DriveOptions(_operation(side, lane), wait_for_retry=wait, poll_deferred=poll)


def _operation(side: Side, lane: AgentLane) -> str:
    projection = side.harness._core.lanes[lane.name].projection
    if projection.state.current_operation_id is not None:
        return projection.state.current_operation_id
    last = projection.last_result
    return side.new_id() if last is None else last.operation_id


def stale_drive(lane: int) -> Act:
    """Drive and abort an operation that never was."""

    async def act(side: Side) -> None:
        found, stale = await side.lane(lane), side.new_id()
        side.call("stale drive", found.drive(DriveOptions(stale), BACKGROUND))
        side.call("stale abort", found.request_abort(stale, BACKGROUND))

    return act


def resume(lane: int) -> Act:
    """Drive with one poll."""

    async def act(side: Side) -> None:
        side.call("resume", (await side.lane(lane)).resume(BACKGROUND))

    return act


def queue(number: int, lane: int, which: Queue, script: tuple[str, ...]) -> Act:
    """Queue input."""

    async def act(side: Side) -> None:
        found = await side.lane(lane)
        text = f"p{number}: {' '.join(script)}"

        async def enqueue() -> Any:
            match which:
                case "steer":
                    result = await found.steer(text, BACKGROUND)
                case "follow_up":
                    result = await found.follow_up(text, BACKGROUND)
                case "next_run":
                    result = await found.next_run(text, BACKGROUND)
            if isinstance(result, Ok) and isinstance(result.value, QueuedEntry):
                side.queued.append(result.value.entry_id)
            return result

        side.call(which, enqueue())

    return act


def cancel_queued(lane: int, number: int) -> Act:
    """Cancel something that was queued once, wherever it is now."""

    async def act(side: Side) -> None:
        found = await side.lane(lane)
        known = side.queued or [side.new_id()]
        target = known[-1 - number % len(known)]
        side.call("cancel queued", found.cancel_queued(target, BACKGROUND))

    return act


def abort(lane: int, *, drive: bool) -> Act:
    """Cancel what is open, with or without a pass that sees to it."""

    async def act(side: Side) -> None:
        found = await side.lane(lane)
        if drive:
            side.call("abort", found.abort(BACKGROUND))
        else:
            target = _operation(side, found)
            side.call("request abort", found.request_abort(target, BACKGROUND))

    return act


def append(number: int, lane: int, kind: str) -> Act:
    """Append to the tree: a message, or a custom entry that the model sees or does not."""

    async def act(side: Side) -> None:
        tree = (await side.lane(lane)).tree
        if kind == "message":
            message = UserMessage(content=f"p{number}: say", timestamp=side.clock.now_ms())
            side.call("append", tree.append_message(message, BACKGROUND))
        else:
            side.call("note", tree.append_custom_entry(kind, {"n": number}, BACKGROUND))

    return act


def navigate(number: int, lane: int, entry: int, summary: str | None, *, label: bool) -> Act:
    """Move a lane, with a summary of what it leaves or without."""

    async def act(side: Side) -> None:
        found, target = await side.lane(lane), side.entry(entry)
        request = NavigationRequest(
            target_id=target,
            options=NavigateOptions(
                summarize=summary is not None,
                label=f"l{number}" if label else None,
                custom_instructions=None if summary is None else f"\nq{number}: {summary}\n",
            ),
        )
        options = request.options
        side.call(
            "navigate",
            found.navigate(
                target,
                BACKGROUND,
                summarize=options.summarize,
                label=options.label,
                custom_instructions=options.custom_instructions,
            ),
        )

    return act


def compact(number: int, lane: int, summary: str) -> Act:
    """Compact a lane's context."""

    async def act(side: Side) -> None:
        found = await side.lane(lane)
        words = f"\nq{number}: {summary}\n"
        side.call("compact", found.compact(BACKGROUND, custom_instructions=words))

    return act


def create_lane(name: int, entry: int) -> Act:
    """Create a lane, or fail to because it exists."""

    async def act(side: Side) -> None:
        at = side.entry(entry)
        side.call("create lane", side.harness.create_lane(f"lane {name}", at, BACKGROUND))

    return act


def configure(lane: int, model: int, level: ThinkingLevel, tools: int) -> Act:
    """Change everything a lane is configured by."""

    async def act(side: Side) -> None:
        found = await side.lane(lane)
        names = list(TOOLS)[:tools]
        side.call("model", found.set_model(MODELS[model % len(MODELS)], BACKGROUND))
        side.call("level", found.set_thinking_level(level, BACKGROUND))
        side.call("tools", found.set_active_tools(names, BACKGROUND))

    return act


def modes(steering: QueueMode, follow_up: QueueMode) -> Act:
    """Change how queues are drained in later runs of this process."""

    async def act(side: Side) -> None:
        side.call("steering", side.harness.set_steering_mode(steering, BACKGROUND))
        side.call("follow-up", side.harness.set_follow_up_mode(follow_up, BACKGROUND))

    return act


def describe(number: int, entry: int, *, remove: bool) -> Act:
    """Label an entry and name the session, or take both away."""

    async def act(side: Side) -> None:
        tree, target = side.harness.tree, side.entry(entry)
        side.call("name", tree.set_name(None if remove else f"name {number}", BACKGROUND))
        if target is not None:
            label = None if remove else f"label {number}"
            side.call("label", tree.set_label(target, label, BACKGROUND))

    return act


def record_usage(number: int, lane: int, entry: int) -> Act:
    """Correct the ledger by hand."""

    async def act(side: Side) -> None:
        found = await side.lane(lane)
        usage = Usage(input=number, total_tokens=number)
        side.call("usage", found.record_usage(usage, BACKGROUND, entry_id=side.entry(entry)))

    return act


def store(number: int, key: str, what: str) -> Act:
    """Change an application's value or list."""

    async def act(side: Side) -> None:
        tree = side.harness.tree
        stored, log = value(object, "app.value", key), list_of(object, "app.list", key)
        match what:
            case "set":
                side.call("set", tree.set_value(stored, {"n": [number, None, 0.5]}, BACKGROUND))
            case "null":
                side.call("null", tree.set_value(stored, None, BACKGROUND))
            case "delete":
                side.call("delete", tree.delete_value(stored, BACKGROUND))
            case "append":
                side.call("list", tree.append_list(log, f"\ud800 {number}", BACKGROUND))
            case _:
                side.call("drop", tree.delete_list(log, BACKGROUND))

    return act


def read(lane: int, key: str, limit: int, entry: int) -> Act:
    """Read pages of a list, of a branch, of all entries, and the lane's snapshot."""

    async def act(side: Side) -> None:
        found = await side.lane(lane)
        tree = found.tree

        async def reading() -> list[Any]:
            log = list_of(object, "app.list", key)
            first = await tree.read_list(log, ListRead(limit=limit), BACKGROUND)
            cursor = first[-1].seq if first else None
            rest = await tree.read_list(log, ListRead(cursor=cursor, limit=limit), BACKGROUND)
            back = await tree.read_list(log, ListRead(cursor=cursor, order="desc"), BACKGROUND)
            branch = BranchQuery(start=side.entry(entry), limit=limit, stop_at_type="compaction")
            watch = await found.watch(BACKGROUND)
            watch.unsubscribe()
            return [
                [[element.value for element in page] for page in (first, rest, back)],
                await tree.scan_values(value(object, "app.value", key[:1]), BACKGROUND),
                await tree.find_entries_on_branch(branch, BACKGROUND),
                await tree.find_entries(EntryQuery(limit=limit, type="message"), BACKGROUND),
                await found.inspect_execution(BACKGROUND),
                watch.snapshot,
            ]

        side.call("read", reading())

    return act


# What happens around the process


def release(number: int) -> Act:
    """Let one held stream or tool go on."""

    async def act(side: Side) -> None:
        side.say(f"released {side.cast.release(number)}")

    return act


def advance() -> Act:
    """Let time come to the next timer."""

    async def act(side: Side) -> None:
        side.say(f"woke {side.clock.advance_to_next()}")

    return act


def kill() -> Act:
    """Kill the process where it stands."""

    async def act(side: Side) -> None:
        side.process.kill()

    return act


def doom(point: int) -> Act:
    """Let the process die before or after a later commit."""

    async def act(side: Side) -> None:
        side.process.die_at(point)

    return act


def reopen() -> Act:
    """Close in good order, and attach again."""

    async def act(side: Side) -> None:
        await side.close()
        await side.reopen()

    return act


def fork(entry: int, kind: Literal["tree", "at", "before"], *, move: bool) -> Act:
    """Fork while whatever is going on goes on; go on with the fork, or drop it."""

    async def act(side: Side) -> None:
        target = side.entry(entry)
        options = (
            TreeFork(id=side.new_id())
            if kind == "tree"
            else BranchFork(entry_id=target, position=kind, id=side.new_id())
        )
        metadata, content = await side.place.fork(options)
        side.problems += [f"fork: {problem}" for problem in violations(content)]
        side.problems += fork_problems(side.content.path(target) if target else [], content)
        side.say(repr(content.plain()))
        if move:
            await side.close()
            await side.place.move(metadata)
            await side.start_anew()
        else:
            await side.place.delete(metadata)

    return act


def fork_problems(path: list[Entry], content: Any) -> list[str]:
    """What §2.7 forbids in a fork."""
    problems: list[str] = []
    if content.usage:
        problems.append("fork: the ledger of a copy is not empty")
    if any(not namespace.startswith("pi.") for _, namespace, _ in content.namespaces()):
        problems.append("fork: application values were copied")
    if any(content.current(lane) is not None for lane in content.lanes()):
        problems.append("fork: an operation was copied")
    if content.keys("pi.pending.entry"):
        problems.append("fork: queued content was copied")
    return problems


def rewrite(drop: Literal["nothing", "custom", "elements"]) -> Act:
    """Close, rewrite without some content, attach again."""

    async def act(side: Side) -> None:
        idle = all(side.content.current(lane) is None for lane in side.content.lanes())
        if not idle:
            side.say("an operation is open")
            return
        await side.close()
        before = await side.place.content()
        metadata = await side.place.rewrite(_Dropping(drop))
        side.say(f"generation {metadata.store_generation}")
        after = await side.place.content()
        if drop == "nothing":
            side.problems += [f"rewrite: {p}" for p in before.differences(after)]
        side.problems += [f"rewrite: {problem}" for problem in violations(after)]
        await side.start_anew()

    return act


@dataclass(frozen=True)
class _Dropping(Keep):
    """Drops one kind of content."""

    what: str

    def entry(self, entry: Entry) -> Entry | None:
        dropped = self.what == "custom" and isinstance(entry, CustomEntry)
        return None if dropped else entry

    def element(self, record: ElementRecord) -> ElementRecord | None:
        odd = int(str(decode(record.json, object)).split()[-1]) % 2
        return None if self.what == "elements" and odd else record
