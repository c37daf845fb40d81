"""Each invariant check finds the violation that it is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.entries import CustomPayload, MessagePayload, NewEntry
from harness.messages import UserMessage, text_result
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE, LaneState, RunLastResult
from harness.operation.payloads import PendingMessage
from harness.operation.state import (
    EMPTY_INBOX,
    RUNNING,
    OperationMeta,
    RunIntent,
    RunSettings,
    RunState,
    StartingPhase,
)
from harness.settings import CompactionSettings, LaneConfiguration, ModelIdentity
from harness.storage.address import list_of, value
from harness.storage.memory import MemoryState
from harness.storage.protocol import CommitResult
from harness.storage.writes import (
    AppendList,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
    append_list,
    delete_value,
    insert_entry,
    set_value,
)
from harness.testing.audit import CommitAudit
from harness.testing.conformance.samples import Samples
from harness.testing.content import Content
from harness.testing.invariants import changes, violations
from harness.usage import NewUsageRow, Usage

SAMPLES = Samples()
ROOT, TIP, OTHER, OPERATION, LATER = (SAMPLES.new_id() for _ in range(5))
CONFIG = LaneConfiguration(
    model=ModelIdentity(provider="p", model_id="m"), thinking_level="off", active_tool_names=()
)
MESSAGE = UserMessage(content="hi", timestamp=0)
BUSY = LaneState(current_operation_id=OPERATION, pending_next_run=())
META = OperationMeta(
    operation_id=OPERATION,
    lane="main",
    source_leaf_id=TIP,
    started_at=0,
    intent=RunIntent(prompt_entry_ids=(TIP,)),
)
RUN = RunState(
    control=RUNNING,
    settings=RunSettings(
        compaction=CompactionSettings(),
        steering_mode="all",
        follow_up_mode="all",
        tool_execution="parallel",
    ),
    phase=StartingPhase(),
    inbox=EMPTY_INBOX,
    latest_assistant_entry_id=None,
)
RESULT = RunLastResult(operation_id=OPERATION, outcome="completed", leaf_id=TIP)


def entry(entry_id: str, parent: str | None) -> Write:
    return insert_entry(NewEntry(entry_id, parent, MessagePayload(message=MESSAGE)))


HISTORY: tuple[Write, ...] = (
    entry(ROOT, None),
    entry(TIP, ROOT),
    set_value(values.lane_leaf("main"), TIP),
    set_value(values.lane_state("main"), IDLE_LANE),
    set_value(values.lane_config("main"), CONFIG),
)
ACCEPTED: tuple[Write, ...] = (
    set_value(values.operation_meta(OPERATION), META),
    set_value(values.operation_state(OPERATION), RUN),
    set_value(values.lane_state("main"), BUSY),
)
ENDED: tuple[Write, ...] = (
    delete_value(values.operation_meta(OPERATION)),
    delete_value(values.operation_state(OPERATION)),
    set_value(values.lane_last_result("main"), RESULT),
    set_value(values.lane_state("main"), IDLE_LANE),
)


def content(*writes: Write) -> Content:
    """Content made of writes, whatever they break."""
    state = MemoryState()
    state.apply(writes, 0)
    return Content(state)


def test_a_good_session_breaks_nothing() -> None:
    assert violations(content(*HISTORY)) == []
    assert violations(content(*HISTORY, *ACCEPTED)) == []
    assert changes(content(*HISTORY), content(*HISTORY, *ACCEPTED)) == []
    audit = CommitAudit(content())
    play(audit, HISTORY, ACCEPTED, ENDED)
    assert audit.problems == []
    assert audit.content.differences(content(*HISTORY, *ACCEPTED, *ENDED)) == []


BROKEN: dict[str, tuple[str, tuple[Write, ...]]] = {
    "an id of two kinds": ("1: ", (InsertUsage(NewUsageRow(id=TIP, usage=Usage())),)),
    "an id that is no UUIDv7": ("1: ", (entry("root", None),)),
    "a value and a list at one address": (
        "5: ",
        (set_value(value(int, "app"), 1), append_list(list_of(int, "app"), 1)),
    ),
    "an unknown reserved namespace": ("5: ", (SetValue("pi.other", "", 1),)),
    "a missing parent": ("11: ", (entry(OTHER, LATER),)),
    "a leaf that does not exist": ("11: ", (set_value(values.lane_leaf("main"), LATER),)),
    "a lane without state": ("§2.3: ", (set_value(values.lane_leaf("side"), None),)),
    "a state without a lane": ("§2.3: ", (set_value(values.lane_state("side"), IDLE_LANE),)),
    "a busy lane without its operation": ("12: ", (set_value(values.lane_state("main"), BUSY),)),
    "an operation that no lane names": (
        "13: ",
        (set_value(values.operation_state(OPERATION), RUN),),
    ),
    "arguments that outlived their operation": (
        "13: ",
        (set_value(values.operation_tool_args(OPERATION, "s", 0), {}),),
    ),
    "frames that outlived their operation": (
        "13: ",
        (AppendList("pi.pending.assistant_frame", f"{OPERATION}:{LATER}", {}),),
    ),
    "content that waits for nobody": (
        "13: ",
        (set_value(values.pending_entry(OTHER), PendingMessage(payload=MESSAGE)),),
    ),
    "content that waits and is placed": (
        "4: ",
        (set_value(values.pending_entry(TIP), PendingMessage(payload=MESSAGE)),),
    ),
    "a queued id without content": (
        "15: ",
        (
            set_value(
                values.lane_state("main"),
                LaneState(current_operation_id=None, pending_next_run=(OTHER,)),
            ),
        ),
    ),
    "a checkpoint without its call": (
        "30: ",
        (*ACCEPTED, set_value(values.pending_tool_output(OPERATION, OTHER), text_result("half"))),
    ),
    "frames without their response": (
        "31: ",
        (*ACCEPTED, AppendList("pi.pending.assistant_frame", f"{OPERATION}:{LATER}", {})),
    ),
    "a failure without an error": (
        "16: ",
        (
            set_value(
                values.lane_last_result("main"),
                RunLastResult(operation_id=LATER, outcome="failed", leaf_id=TIP),
            ),
        ),
    ),
    "a result of the open operation": (
        "16: ",
        (*ACCEPTED, set_value(values.lane_last_result("main"), RESULT)),
    ),
    "two rows of one response": (
        "§1.6: ",
        (
            insert_entry(NewEntry(OTHER, TIP, SAMPLES.assistant("said"))),
            InsertUsage(NewUsageRow(id=LATER, usage=Usage(), entry_id=OTHER)),
            InsertUsage(NewUsageRow(id=SAMPLES.new_id(), usage=Usage(), entry_id=OTHER)),
        ),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_session_is_found(name: str) -> None:
    expected, writes = BROKEN[name]
    found = violations(content(*HISTORY, *writes))
    assert any(problem.startswith(expected) for problem in found), found


def test_two_lanes_cannot_have_one_operation() -> None:
    side = (
        set_value(values.lane_leaf("side"), TIP),
        set_value(values.lane_config("side"), CONFIG),
        set_value(values.lane_state("side"), BUSY),
    )
    found = violations(content(*HISTORY, *ACCEPTED, *side))
    assert any(problem.startswith("17: ") for problem in found), found


def play(audit: CommitAudit, *transactions: tuple[Write, ...]) -> None:
    """Commit transactions before the eyes of an audit."""
    for writes in transactions:
        first = audit.content.state.next_seq
        audit(writes, CommitResult(first, tuple(range(first, first + len(writes))), 0))


TRANSACTIONS: dict[str, tuple[str, tuple[tuple[Write, ...], ...]]] = {
    "an id written twice": ("1, 11: ", ((entry(TIP, ROOT),),)),
    "a leaf that jumps": ("9: ", ((set_value(values.lane_leaf("main"), ROOT),),)),
    "an append below another entry": (
        "9: ",
        ((entry(OTHER, ROOT), set_value(values.lane_leaf("main"), OTHER)),),
    ),
    "acceptance of a busy lane": (
        "14: ",
        (
            ACCEPTED,
            (
                set_value(
                    values.operation_meta(LATER),
                    OperationMeta(
                        operation_id=LATER,
                        lane="main",
                        source_leaf_id=TIP,
                        started_at=0,
                        intent=RunIntent(prompt_entry_ids=()),
                    ),
                ),
                set_value(values.operation_state(LATER), RUN),
                set_value(
                    values.lane_state("main"),
                    LaneState(current_operation_id=LATER, pending_next_run=()),
                ),
            ),
        ),
    ),
    "metadata written again": ("§1.3: ", (ACCEPTED, ACCEPTED[:1])),
    "an operation id used again": ("14: ", (ACCEPTED, ENDED, ACCEPTED)),
    "a result without an end": ("16: ", ((set_value(values.lane_last_result("main"), RESULT),),)),
    "an end that keeps the state": (
        "13: ",
        (ACCEPTED, (ENDED[0], ENDED[2], ENDED[3])),
    ),
    "an abort that nobody asked for": (
        "§4.6: ",
        (
            ACCEPTED,
            (
                *ENDED[:2],
                set_value(
                    values.lane_last_result("main"),
                    RunLastResult(operation_id=OPERATION, outcome="aborted", leaf_id=TIP),
                ),
                ENDED[3],
            ),
        ),
    ),
    "a lane without configuration": (
        "§2.3: ",
        (
            (
                set_value(values.lane_leaf("side"), TIP),
                set_value(values.lane_state("side"), IDLE_LANE),
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_wrong_transaction_is_found(name: str) -> None:
    expected, transactions = TRANSACTIONS[name]
    audit = CommitAudit(content(*HISTORY))
    play(audit, *transactions)
    assert any(problem.startswith(expected) for problem in audit.problems), audit.problems


def test_numbers_that_do_not_grow_are_found() -> None:
    audit = CommitAudit(content(*HISTORY))
    audit((set_value(value(int, "app"), 1),), CommitResult(1, (1,), 0))
    assert [problem[:3] for problem in audit.problems] == ["2: "]


CHANGED: dict[str, Callable[[], Content]] = {
    "a lost entry": lambda: content(HISTORY[0], *HISTORY[2:]),
    "a changed entry": lambda: content(
        HISTORY[0],
        InsertEntry(NewEntry(TIP, ROOT, CustomPayload(custom_type="x"))),
        *HISTORY[2:],
    ),
    "another parent": lambda: content(HISTORY[0], entry(TIP, None), *HISTORY[2:]),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_change_of_what_was_written_is_found(name: str) -> None:
    found = changes(content(*HISTORY), CHANGED[name]())
    assert any(problem.startswith("1: ") for problem in found), found
