"""The ledger of a session and its totals."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from app.http.auth import Reader, UsageReader, Writer
from app.http.bodies import read_raw
from app.http.calls import Ctx, Svc, answer, reading, run
from app.http.cursors import page, seq_bounds, seq_cursor
from app.http.idempotency import Key, fingerprint, make_once
from app.http.openapi import route
from app.http.parameters import CursorText, Limit, SessionId, canonical_uuid
from app.http.problems import invalid, rejection
from app.http.wire import UsageInput, UsagePage
from harness.errors import UnknownTarget
from harness.session.session import MAIN_LANE
from harness.storage.protocol import SeqOrder, UsageScan
from harness.usage import SessionStats
from workers.commands import RecordedUsage, RecordUsage, RequestKey

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["usage"])

_CORRECTION = {
    "usage": {
        "input": 0,
        "output": 0,
        "cacheRead": 0,
        "cacheWrite": 0,
        "totalTokens": 0,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": -0.02},
    },
    "details": {"reason": "credit"},
}


@router.get("/usage", **route("listUsage", {200: ("UsagePage", UsagePage)}, problems=(404, 422)))
async def list_usage(
    session_id: SessionId,
    caller: UsageReader,
    services: Svc,
    context: Ctx,
    order: SeqOrder = "asc",
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Response:
    """Rows of the ledger: one for each attempt at a provider, and corrections."""
    reader = await reading(services, caller, session_id)
    from_seq, to_seq = seq_bounds(cursor, order)
    found = await reader.scan_usage(
        UsageScan(from_seq=from_seq, to_seq=to_seq, order=order, limit=limit + 1),
        context,
    )
    rows, following = page(found, limit, lambda row: seq_cursor(row.seq))
    return answer(UsagePage(data=rows, next_cursor=following))


@router.post(
    "/usage",
    **route(
        "recordUsage",
        {201: ("RecordedUsage", RecordedUsage)},
        body=("UsageInput", UsageInput),
        examples={"credit": _CORRECTION},
        problems=(404, 409),
    ),
)
async def record_usage(
    session_id: SessionId,
    given: Annotated[tuple[bytes, UsageInput], Depends(read_raw(UsageInput))],
    caller: Writer,
    services: Svc,
    context: Ctx,
    key: Key = None,
) -> Response:
    """Add a correction to the ledger."""
    raw, body = given
    entry_id = None if body.entry_id is None else canonical_uuid(body.entry_id)
    if body.entry_id is not None and entry_id is None:
        raise invalid("body.entryId", "it is not a UUID")

    async def make(request: RequestKey | None) -> bytes:
        if entry_id is not None:
            reader = await reading(services, caller, session_id)
            if entry_id not in await reader.get_entries([entry_id], context):
                message = f"no entry {entry_id}"
                raise rejection(UnknownTarget(message=message, target_id=entry_id))
        command = RecordUsage(
            lane=MAIN_LANE,
            usage=body.usage,
            entry_id=entry_id,
            details=body.details,
            request=request,
        )
        return await run(services, caller, session_id, command, context)

    async def made(row_id: str) -> RecordedUsage:
        return RecordedUsage(id=row_id)

    asked = fingerprint("usage", session_id, raw)
    return await make_once(services, caller.tenant_id, key, asked, 201, make, made)


@router.get("/stats", **route("getStats", {200: ("SessionStats", SessionStats)}))
async def get_stats(session_id: SessionId, caller: Reader, services: Svc, context: Ctx) -> Response:
    """Messages and the sum of the ledger."""
    reader = await reading(services, caller, session_id)
    return answer(await reader.get_stats(context))
