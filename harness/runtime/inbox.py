"""Queues and tree writes of a lane: steer, follow up, next run, cancel, append (§3.11)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from harness.context import Context
from harness.entries import EntryPayload
from harness.errors import Closed, HarnessClosed, InvalidMessage, NoActiveRun
from harness.messages import AgentMessage, ImageContent
from harness.operation.events import QueuedItem
from harness.operation.results import CancelQueued, QueuedEntry
from harness.operation.state import RunState
from harness.operation.step import LaneProjection
from harness.operation.transitions import queues as transitions
from harness.operation.transitions.queues import QueueContents
from harness.result import Err, Ok, Result
from harness.runtime.accept import CLOSED
from harness.runtime.lane import Commit, Decision, Decline, Lane, until_cancelled
from harness.runtime.procedures.base import queue_contents
from harness.runtime.requests import normalize_input
from harness.session.once import Once, made_before, noting
from harness.session.session import SessionMutator

QueueResult: TypeAlias = Result[QueuedEntry, NoActiveRun | InvalidMessage | Closed]
NextRunResult: TypeAlias = Result[QueuedEntry, InvalidMessage | Closed]
CancelQueuedResult: TypeAlias = Result[CancelQueued, Closed]


def _one(
    lane: Lane, message: str | AgentMessage, images: Sequence[ImageContent]
) -> AgentMessage | InvalidMessage:
    normalized = normalize_input(
        message, images, lane=lane.name, now=lane.core.environment.clock.now_ms()
    )
    if isinstance(normalized, InvalidMessage):
        return normalized
    if not normalized:
        reason = "the message is empty"
        return InvalidMessage(message=f"invalid message: {reason}", lane=lane.name, reason=reason)
    return normalized[0]


def _with(contents: QueueContents, queue: int, item: QueuedItem) -> QueueContents:
    steer, follow_up, next_run = contents
    lists = [steer, follow_up, next_run]
    lists[queue] = (*lists[queue], item)
    return lists[0], lists[1], lists[2]


async def enqueue(
    lane: Lane,
    queue: transitions.RunQueue,
    message: str | AgentMessage,
    images: Sequence[ImageContent],
    once: Once | None,
    context: Context,
) -> QueueResult:
    """Queue a message for the open run."""
    normalized = _one(lane, message, images)
    if isinstance(normalized, InvalidMessage):
        return Err(normalized)
    entry_id = lane.core.environment.ids.next()

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[QueueResult]:
        known = await made_before(once, inner)
        if known is not None:
            return Decline(Ok(QueuedEntry(entry_id=known)))
        if not transitions.takes_input(projection):
            return Decline(
                Err(NoActiveRun(message=f"no run on lane {lane.name} takes input", lane=lane.name))
            )
        listened = lane.core.events.listened
        contents = await queue_contents(projection, mutator, inner, wanted=listened)
        if listened:
            item = QueuedItem(entry_id=entry_id, message=normalized)
            contents = _with(contents, 0 if queue == "steer" else 1, item)
        step = transitions.enqueue(projection, queue, entry_id, normalized, contents)
        return Commit(noting(step, once, entry_id), Ok(QueuedEntry(entry_id=entry_id)))

    try:
        return await lane.command(plan, context)
    except HarnessClosed:
        return Err(CLOSED)


async def enqueue_next_run(
    lane: Lane,
    message: str | AgentMessage,
    images: Sequence[ImageContent],
    once: Once | None,
    context: Context,
) -> NextRunResult:
    """Queue a message for the next run; never starts one."""
    normalized = _one(lane, message, images)
    if isinstance(normalized, InvalidMessage):
        return Err(normalized)
    entry_id = lane.core.environment.ids.next()

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[NextRunResult]:
        known = await made_before(once, inner)
        if known is not None:
            return Decline(Ok(QueuedEntry(entry_id=known)))
        listened = lane.core.events.listened
        contents = await queue_contents(projection, mutator, inner, wanted=listened)
        if listened:
            contents = _with(contents, 2, QueuedItem(entry_id=entry_id, message=normalized))
        step = transitions.enqueue_next_run(projection, entry_id, normalized, contents)
        return Commit(noting(step, once, entry_id), Ok(QueuedEntry(entry_id=entry_id)))

    try:
        return await lane.command(plan, context)
    except HarnessClosed:
        return Err(CLOSED)


async def cancel_queued(lane: Lane, entry_id: str, context: Context) -> CancelQueuedResult:
    """Remove an item that is still queued; says what became of it otherwise (§3.11)."""

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[CancelQueued]:
        queue = transitions.queued_in(projection, entry_id)
        if queue is None:
            placed = await mutator.get_entries([entry_id], inner)
            kind = "already_consumed" if entry_id in placed else "not_found"
            return Decline(CancelQueued(kind=kind))
        contents = await queue_contents(
            projection,
            mutator,
            inner,
            wanted=lane.core.events.listened and queue != "writes",
            without=frozenset((entry_id,)),
        )
        step = transitions.cancel_queued(projection, queue, entry_id, contents)
        return Commit(step, CancelQueued(kind="cancelled"))

    try:
        return Ok(await lane.command(plan, context))
    except HarnessClosed:
        return Err(CLOSED)


async def append(
    lane: Lane, payload: EntryPayload, context: Context, *, once: Once | None = None
) -> str:
    """Append to the tree: at once on an idle lane, at the next checkpoint during a run.

    While a compaction or navigation is open the write waits for its end. Raises `HarnessClosed`.
    """
    entry_id = lane.core.environment.ids.next()

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[str | asyncio.Future[None]]:
        known = await made_before(once, inner)
        if known is not None:
            return Decline(known)
        operation = projection.operation
        if operation is None:
            step = transitions.append_now(projection, entry_id, payload)
        elif isinstance(operation.state, RunState):
            pending = transitions.pending_of(payload)
            step = transitions.defer_write(projection, entry_id, pending)
        else:
            # Registered on the line, so that the end of the operation cannot be missed.
            return Decline(lane.idle_waiter())
        return Commit(noting(step, once, entry_id), entry_id)

    while not isinstance(appended := await lane.command(plan, context), str):
        await until_cancelled(appended, context)
    return appended
