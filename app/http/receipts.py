"""Receipts of operations as this service shows them, and waiting for their end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from fastapi import Request

from app.http.services import Services
from app.http.wire import OperationReceipt
from harness.codec import decode
from harness.context import Context
from harness.entries import MessageEntry
from harness.messages import AssistantMessage
from harness.operation.durable import OperationError
from harness.operation.lane_state import LaneLastResult, RunLastResult
from storage_pg.receipts import Receipt, find_receipt

# Any: pyright cannot name a union as type[T]; the decoder takes it.
_LAST_RESULT: Any = LaneLastResult

# Whoever waits for an end hears of it. Hints may get lost, so it is also looked for, ever more rarely.
_FIRST_LOOK = 0.25
_LONGEST_LOOK = 1.0


def receipt_view(receipt: Receipt) -> OperationReceipt:
    """A receipt as listed, without the final message."""
    return OperationReceipt(
        id=receipt.id,
        session_id=receipt.session_id,
        lane=receipt.lane,
        kind=receipt.kind,
        status=receipt.status,
        accepted_at=receipt.accepted_at,
        finished_at=receipt.finished_at,
        outcome=receipt.outcome,
        error=None if receipt.error is None else decode(receipt.error, OperationError),
        result=None if receipt.result is None else decode(receipt.result, _LAST_RESULT),
    )


async def full_view(
    services: Services, tenant_id: str, receipt: Receipt, context: Context
) -> OperationReceipt:
    """A receipt with the message that the run ended with, while its session exists."""
    view = receipt_view(receipt)
    result = view.result
    if not isinstance(result, RunLastResult) or result.final_assistant_entry_id is None:
        return view
    reader = services.sessions.reader(tenant_id, receipt.session_id)
    entry_id = result.final_assistant_entry_id
    entry = (await reader.get_entries([entry_id], context)).get(entry_id)
    if not isinstance(entry, MessageEntry) or not isinstance(entry.message, AssistantMessage):
        return view
    return msgspec.structs.replace(view, final_message=entry.message)


async def wait_for_end(
    services: Services,
    request: Request,
    tenant_id: str,
    session_id: str,
    operation_id: str,
    seconds: float,
) -> Receipt | None:
    """The receipt of an accepted operation once it is done; earlier when the time is up, the client has
    gone, or this process is draining. None when there is no such operation."""
    waiting = asyncio.create_task(_ended(services, tenant_id, session_id, operation_id, seconds))
    others = [
        asyncio.create_task(services.draining.wait()),
        asyncio.create_task(_disconnected(request)),
    ]
    try:
        await asyncio.wait([waiting, *others], return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
    finally:
        for task in (waiting, *others):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(waiting, *others, return_exceptions=True)
    return await find_receipt(services.pool, tenant_id, operation_id)


async def _ended(
    services: Services, tenant_id: str, session_id: str, operation_id: str, seconds: float
) -> Receipt | None:
    """The receipt when the operation is not open any more, or after so long."""
    clock = services.environment.clock
    deadline = clock.monotonic() + seconds
    pause = _FIRST_LOOK
    with services.host.hints.passes(session_id) as passed:
        while True:
            passed.clear()
            receipt = await find_receipt(services.pool, tenant_id, operation_id)
            left = deadline - clock.monotonic()
            if receipt is None or receipt.status == "done" or left <= 0:
                return receipt
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(pause, left)):
                    await passed.wait()
            pause = min(pause * 2, _LONGEST_LOOK)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
