"""Writes down events in words, so that a test can state a whole run as a list (§5.5, §9.3 B)."""

from __future__ import annotations

from typing import assert_never

from harness.context import Context
from harness.entries import Entry, payload_of
from harness.operation.events import (
    CompactionEnd,
    CompactionStart,
    ConfigUpdate,
    EntryAdded,
    Fault,
    HandlerError,
    HarnessEvent,
    LaneCreated,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    NavigationEnd,
    NavigationStart,
    QueueUpdate,
    RetryEnd,
    RetryScheduled,
    RetryStart,
    RunAbort,
    RunEnd,
    RunResume,
    RunStart,
    RunSuspend,
    ToolEnd,
    ToolStart,
    ToolUpdateEvent,
    TurnEnd,
    TurnStart,
    UsageEvent,
    ValueUpdate,
    WritePending,
    event_type,
)
from harness.runtime.events import EventBus
from harness.testing.instrumented import describe_message, describe_payload


class Journal(list[str]):
    """Lines in the order in which things happened. Give it to `InstrumentedStorage` for commits."""

    def listen(self, events: EventBus) -> None:
        """Write every event down when it is delivered."""

        def heard(event: HarnessEvent, context: Context) -> None:
            self.append(describe_event(event))

        events.on("*", heard)


def describe_event(event: HarnessEvent) -> str:
    """Type and the details that tests tell apart; `(recovery)` for recovered lifecycle."""
    words = " ".join((event_type(event), *_details(event)))
    return f"{words} (recovery)" if getattr(event, "recovery", False) else words


def _details(event: HarnessEvent) -> tuple[str, ...]:  # noqa: C901  # flat: one case per event
    match event:
        case MessageStart(message=message) | MessageEnd(message=message):
            return (describe_message(message),)
        case MessageUpdate(event=piece):
            return (str(piece.__struct_config__.tag),)
        case EntryAdded(entry=entry):
            return (describe_entry(entry),)
        case RunEnd(outcome=outcome) | CompactionEnd(outcome=outcome):
            return (outcome,)
        case NavigationEnd(outcome=outcome):
            return (outcome,)
        case ToolStart(tool_name=name) | ToolUpdateEvent(tool_name=name):
            return (name,)
        case ToolEnd(tool_name=name, is_error=is_error):
            return (name, "error") if is_error else (name,)
        case TurnEnd(tool_results=results):
            return (str(len(results)),)
        case RetryScheduled(attempt=attempt) | RetryStart(attempt=attempt):
            return (str(attempt),)
        case RetryEnd(attempt=attempt, success=success):
            return (str(attempt), "succeeded" if success else "failed")
        case QueueUpdate(steer=steer, follow_up=follow_up, next_run=next_run):
            return (f"{len(steer)}/{len(follow_up)}/{len(next_run)}",)
        case CompactionStart(reason=reason):
            return (reason,)
        case WritePending(entry_type=kind):
            return (kind,)
        case ValueUpdate(value=value):
            return (value,)
        case ConfigUpdate(property=name):
            return (name,)
        case HandlerError(kind=kind, name=name):
            return (kind, name)
        case RunAbort(steer=steer, follow_up=follow_up):
            return (f"{len(steer)}/{len(follow_up)}",)
        case (
            RunStart()
            | RunResume()
            | RunSuspend()
            | TurnStart()
            | NavigationStart()
            | LaneCreated()
            | UsageEvent()
            | Fault()
        ):
            return ()
        case _:
            assert_never(event)


def describe_entry(entry: Entry) -> str:
    """The kind of an entry."""
    return describe_payload(payload_of(entry))
