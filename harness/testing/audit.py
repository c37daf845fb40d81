"""The invariants that one transaction shows (§9.1): give it every commit, it keeps the violations.

It applies each commit to maps of its own, so that it knows what was true before and after it, and
what a storage should hold now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from harness.entries import MessagePayload, NewEntry
from harness.errors import StorageCorrupt
from harness.messages import AssistantMessage, CustomMessage, ToolResultMessage, UserMessage
from harness.operation import values
from harness.operation.state import (
    AssistantPhase,
    CancelRequested,
    CheckpointPhase,
    CompactionPhase,
    NavigationIntent,
    NeedAssistant,
    OperationMeta,
    OperationState,
    RunState,
    StartingPhase,
)
from harness.storage.memory import MemoryState
from harness.storage.protocol import CommitResult
from harness.storage.writes import (
    AppendList,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
    is_stream,
)
from harness.testing.content import Content
from harness.testing.instrumented import describe_all
from harness.testing.operations import operation_violations, reserved_ids

Violations: TypeAlias = Iterator[str]

META = values.operation_meta("").namespace
STATE = values.operation_state("").namespace
LEAF = values.lane_leaf("").namespace
LANE = values.lane_state("").namespace
RESULT = values.lane_last_result("").namespace
WRITTEN_ONCE = frozenset(
    (
        META,
        values.operation_preparation_prefix("").namespace,
        values.operation_tool_args_prefix("").namespace,
    )
)


class CommitAudit:
    """Watches one session from `start` on. `problems` are the violations, `content` what should be."""

    def __init__(self, start: Content) -> None:
        self.content = start.copy()
        self.problems: list[str] = []
        self.entries: list[str] = []
        self.usage: list[str] = []
        self.commits = 0
        self._accepted: set[str] = set()
        self._ended: set[str] = set()
        self._sure_seq = self.content.state.next_seq

    def owner_died(self) -> None:
        """The newest frames may be gone with their process (§3.7): their numbers come again."""
        self.content.state.next_seq = self._sure_seq

    def __call__(self, writes: Sequence[Write], result: CommitResult) -> None:
        """Hear of a durable commit."""
        self.commits += 1
        state = self.content.state
        found = [*_stamps(state, writes, result)]
        try:
            state.check(writes)
        except StorageCorrupt as error:
            found.append(f"1, 11: {error}")
        commit = _Commit(self.content, writes)
        found += [*commit.before()]
        for write, seq in zip(writes, result.seqs, strict=True):
            state.apply_one(write, seq, result.timestamp)
            if isinstance(write, InsertEntry):
                self.entries.append(write.entry.id)
            elif isinstance(write, InsertUsage):
                self.usage.append(write.row.id)
        state.next_seq = result.seqs[-1] + 1 if result.seqs else state.next_seq
        if not is_stream(writes):
            self._sure_seq = state.next_seq
        found += [*commit.after()]
        for operation_id in commit.accepted:
            if operation_id in self._accepted:
                found.append(f"14: operation id {operation_id} is accepted again")
            self._accepted.add(operation_id)
        for operation_id in commit.ended:
            if operation_id in self._ended:
                found.append(f"21: operation {operation_id} ends again")
            self._ended.add(operation_id)
        found += operation_violations(self.content)
        if found:
            words = "; ".join(describe_all(writes))
            self.problems += [f"{problem} (by the commit: {words})" for problem in found]


def _stamps(state: MemoryState, writes: Sequence[Write], result: CommitResult) -> Violations:
    seqs = result.seqs
    if len(seqs) != len(writes) or list(seqs) != sorted(set(seqs)):
        yield f"2: {len(writes)} writes got the numbers {seqs}"
    if seqs and (seqs[0] < state.next_seq or result.first_seq != seqs[0]):
        yield f"2: numbers go on at {seqs[0]} ({result.first_seq}), expected {state.next_seq}"


class _Commit:
    """One transaction, looked at before and after it is applied."""

    def __init__(self, content: Content, writes: Sequence[Write]) -> None:
        self._content = content
        self._writes = writes
        self._set = {(w.namespace, w.key): w.value for w in writes if isinstance(w, SetValue)}
        self._deleted = {(w.namespace, w.key) for w in writes if isinstance(w, DeleteValue)}
        self._inserted = {w.entry.id: w.entry for w in writes if isinstance(w, InsertEntry)}
        self._rows = {w.row.id: w.row for w in writes if isinstance(w, InsertUsage)}
        self.accepted = [key for namespace, key in self._set if namespace == META]
        self.ended = [
            key
            for namespace, key in self._deleted
            if namespace == META and content.has(values.operation_meta(key))
        ]
        self._metas: dict[str, OperationMeta] = {}
        self._states: dict[str, OperationState] = {}
        for operation_id in content.keys(STATE):
            meta, state = content.operation(operation_id)
            if meta is not None and state is not None:
                self._metas[operation_id], self._states[operation_id] = meta, state
        self._new_lanes = {
            key for namespace, key in self._set if namespace == LEAF and not _lane(content, key)
        }

    # Against what was true before

    def before(self) -> Violations:
        """What needs the state before the commit."""
        content = self._content
        for write in self._writes:
            match write:
                case SetValue(namespace=namespace, key=key) if namespace in WRITTEN_ONCE:
                    if key in content.state.values.get(namespace, {}):
                        yield f"§1.3: {namespace}/{key} is written again"
                case SetValue(namespace=namespace, key=key):
                    if (namespace, key) in content.state.lists:
                        yield f"5: value {namespace}/{key} is a list already"
                case AppendList(namespace=namespace, key=key):
                    if key in content.state.values.get(namespace, {}):
                        yield f"5: list {namespace}/{key} is a value already"
                case DeleteValue() | DeleteList() | InsertEntry() | InsertUsage():
                    pass
        for namespace, key in self._set:
            if namespace == LEAF:
                yield from self._leaf(key)
        for operation_id in self.accepted:
            yield from self._acceptance(operation_id)
        for operation_id, state in self._states.items():
            yield from self._settlement(operation_id, state)

    def _leaf(self, lane: str) -> Violations:
        """9: a leaf moves by append, by navigation, or is where its lane is created."""
        target = self._set[LEAF, lane]
        if lane in self._new_lanes:
            return
        old = self._content.leaf(lane)
        tip = target if isinstance(target, str) else None
        while tip is not None and tip in self._inserted:
            tip = self._inserted[tip].parent_id
        if tip == old:
            return
        navigates = any(
            self._metas[operation_id].lane == lane
            and isinstance(self._metas[operation_id].intent, NavigationIntent)
            for operation_id in self.ended
        )
        if not navigates:
            yield f"9: the leaf of {lane} moves from {old} to {target}"

    def _acceptance(self, operation_id: str) -> Violations:
        meta = self._set[META, operation_id]
        state = self._set.get((STATE, operation_id))
        if not isinstance(meta, OperationMeta):
            yield f"14: operation {operation_id} is accepted with {meta}"
            return
        current = self._content.current(meta.lane)
        if current is not None:
            yield f"14: operation {operation_id} is accepted while {current} is open"
        if isinstance(state, RunState) and not isinstance(state.phase, StartingPhase):
            yield f"14: run {operation_id} is accepted as {state.phase}"
        if state is None:
            yield f"14: operation {operation_id} is accepted without a state"
        if meta.source_leaf_id != self._content.leaf(meta.lane):
            yield f"14: operation {operation_id} starts from {meta.source_leaf_id}"

    def _settlement(self, operation_id: str, state: OperationState) -> Violations:
        """15, 19 and §1.6: a response arrives under its reserved ids, with its ledger row."""
        reserved = reserved_ids(state)
        if reserved is None:
            return
        response_id, usage_id = reserved
        placed = self._inserted.get(response_id)
        if placed is None:
            if usage_id in self._rows:
                yield f"15: row {usage_id} is written without its response"
            return
        row = self._rows.get(usage_id)
        if row is None or row.entry_id != response_id or row.adjustment:
            yield f"§1.6: response {response_id} is settled with the row {row}"
        message = _message(placed)
        if not isinstance(message, AssistantMessage):
            yield f"15: reserved response {response_id} is {message}"
            return
        if message.stop_reason != "aborted":
            return
        following = self._set.get((STATE, operation_id))
        control = getattr(following, "control", None)
        if not isinstance(control, CancelRequested):
            yield f"19: response {response_id} is aborted and the state goes on as {control}"

    # Against what is true now

    def after(self) -> Violations:
        """What needs the state after the commit."""
        content = self._content
        for operation_id in self.ended:
            yield from self._end(operation_id)
        for namespace, lane in self._set:
            if namespace == RESULT and not any(
                self._metas[operation_id].lane == lane for operation_id in self.ended
            ):
                yield f"16: a result of lane {lane} outside of a terminal transaction"
        for operation_id in self.accepted:
            meta, _ = content.operation(operation_id)
            if meta is not None and content.current(meta.lane) != operation_id:
                yield f"14: accepted {operation_id} is not current on {meta.lane}"
        for namespace, operation_id in self._set:
            if namespace == STATE:
                yield from self._overflow(operation_id)
        for lane in self._new_lanes:
            configured = content.has(values.lane_config(lane))
            if not (configured and content.has(values.lane_state(lane))):
                yield f"§2.3: lane {lane} is created without configuration or state"

    def _end(self, operation_id: str) -> Violations:
        meta = self._metas.get(operation_id)
        if meta is None:
            yield f"21: operation {operation_id} ends without a state"
            return
        content, lane = self._content, meta.lane
        result = self._set.get((RESULT, lane))
        if getattr(result, "operation_id", None) != operation_id:
            yield f"16: operation {operation_id} ends with {result}"
        if content.has(values.operation_state(operation_id)):
            yield f"13: operation {operation_id} ends and keeps its state"
        if content.current(lane) is not None or (LANE, lane) not in self._set:
            yield f"13: operation {operation_id} ends and lane {lane} is not idle"
        outcome = getattr(result, "outcome", None)
        cancelled = isinstance(self._states[operation_id].control, CancelRequested)
        if (outcome == "aborted") and not cancelled:
            yield f"§4.6: operation {operation_id} ends aborted, and nobody asked for it"

    def _overflow(self, operation_id: str) -> Violations:
        """18: the flag comes with an overflow compaction and goes with new input."""
        old = self._states.get(operation_id)
        _, new = self._content.operation(operation_id)
        if old is None or new is None or not _overflow_used(new):
            return
        phase = new.phase if isinstance(new, RunState) else None
        began = isinstance(phase, CompactionPhase) and phase.reason == "overflow"
        if not _overflow_used(old) and not began:
            yield f"18: {operation_id} used up its overflow recovery without one"
        projecting = [
            entry.id
            for entry in self._inserted.values()
            if isinstance(_message(entry), UserMessage | CustomMessage | ToolResultMessage)
        ]
        if projecting:
            yield f"18: {operation_id} took input {projecting} and keeps the flag"


def _lane(content: Content, lane: str) -> bool:
    return content.has(values.lane_leaf(lane))


def _message(entry: NewEntry) -> object:
    return entry.payload.message if isinstance(entry.payload, MessagePayload) else None


def _overflow_used(state: OperationState) -> bool:
    phase = state.phase if isinstance(state, RunState) else None
    if isinstance(phase, CompactionPhase):
        phase = phase.resume_after
    if isinstance(phase, AssistantPhase):
        return phase.generation.context.overflow_recovery_used
    if isinstance(phase, CheckpointPhase) and isinstance(phase.continuation, NeedAssistant):
        return phase.continuation.overflow_recovery_used
    return False
