"""Operations: accept one, look at receipts, wait, abort."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from app.http.auth import Reader, Writer
from app.http.bodies import read_raw
from app.http.calls import Ctx, Svc, answer, run
from app.http.cursors import instant_cursor, page, parse_instant_cursor
from app.http.idempotency import REPLAYED, Key, fingerprint, id_for_key
from app.http.openapi import route
from app.http.parameters import (
    CursorText,
    Lane,
    LaneFilter,
    Limit,
    OperationId,
    Prefer,
    SessionFilter,
    SessionId,
    WaitQuery,
    wait_of,
)
from app.http.problems import not_found
from app.http.receipts import full_view, receipt_view, wait_for_end
from app.http.wire import OperationPage, OperationReceipt
from harness.codec import decode
from harness.errors import StorageError
from harness.operation.results import AbortRequest, LaneExecution, OperationAdmission
from harness.runtime.requests import OperationRequest
from storage_pg.receipts import OperationStatus, find_receipt
from workers.commands import Abort, Accept, RequestAbort, Resume

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/v1", tags=["operations"])

# Any: pyright cannot name a union as type[T]; the decoder takes it.
_REQUEST: Any = OperationRequest
_RECEIPT = ("OperationReceipt", OperationReceipt)
_ABORTED = ("AbortRequest", AbortRequest)


@router.post(
    "/sessions/{session_id}/lanes/{lane}/operations",
    **route(
        "submitOperation",
        {202: ("OperationAdmission", OperationAdmission), 200: _RECEIPT},
        body=("OperationRequest", OperationRequest),
        examples={
            "prompt": {"kind": "prompt", "prompt": "Say hello."},
            "once": {
                "kind": "prompt",
                "prompt": "Say hello.",
                "operationId": "01997a3e-6f5c-7d2e-9a51-6b1f6a2f9c10",
            },
            "compaction": {"kind": "compaction"},
            "navigation": {
                "kind": "navigation",
                "targetId": "01997a3e-6f5c-7d2e-9a51-6b1f6a2f9c11",
                "options": {"summarize": True},
            },
        },
        problems=(404, 409),
    ),
)
async def submit_operation(
    request: Request,
    session_id: SessionId,
    lane: Lane,
    given: Annotated[tuple[bytes, OperationRequest], Depends(read_raw(_REQUEST))],
    caller: Writer,
    services: Svc,
    context: Ctx,
    key: Key = None,
    prefer: Prefer = None,
) -> Response:
    """Accept an operation durably; from then on it runs to an outcome.

    202 with the admission; with `Prefer: wait=30`, 200 with the receipt if it is over by then. The
    same `operationId` again, from whichever process, is the same operation.
    """
    raw, wanted = given
    headers: dict[str, str] = {}
    if key is not None:
        asked = fingerprint("operation", session_id, lane, raw)
        operation_id, known = await id_for_key(
            services, caller.tenant_id, key, asked, wanted.operation_id
        )
        wanted = msgspec.structs.replace(wanted, operation_id=operation_id)
        if known and await find_receipt(services.pool, caller.tenant_id, operation_id):
            headers |= REPLAYED
    accepted = await run(services, caller, session_id, Accept(lane=lane, request=wanted), context)
    admission = decode(accepted, OperationAdmission)
    headers["Location"] = f"/v1/operations/{admission.operation_id}"
    seconds = wait_of(prefer)
    if seconds is None:
        return answer(accepted, 202, headers)
    headers["Preference-Applied"] = f"wait={seconds:.0f}"
    try:
        receipt = await wait_for_end(
            services, request, caller.tenant_id, session_id, admission.operation_id, seconds
        )
        if receipt is not None and receipt.status == "done":
            view = await full_view(services, caller.tenant_id, receipt, context)
            return answer(view, 200, headers)
    except StorageError as error:
        # It is accepted: whatever keeps the outcome from being told must not hide that.
        logger.warning("operation %s: waiting ended: %s", admission.operation_id, error)
    return answer(accepted, 202, headers)


@router.post(
    "/sessions/{session_id}/lanes/{lane}/resume",
    **route("resumeLane", {202: ("LaneExecution", LaneExecution)}, problems=(404, 409)),
)
async def resume_lane(
    session_id: SessionId, lane: Lane, caller: Writer, services: Svc, context: Ctx
) -> Response:
    """Have the open operation looked at now: a wait ends, a background response is polled."""
    return answer(await run(services, caller, session_id, Resume(lane=lane), context), 202)


@router.post(
    "/sessions/{session_id}/lanes/{lane}/abort",
    **route("abortLane", {202: _ABORTED}, problems=(404, 409)),
)
async def abort_lane(
    session_id: SessionId, lane: Lane, caller: Writer, services: Svc, context: Ctx
) -> Response:
    """Cancel whatever operation is open on the lane; answers when that is durable."""
    return answer(await run(services, caller, session_id, Abort(lane=lane), context), 202)


@router.get(
    "/operations",
    **route("listOperations", {200: ("OperationPage", OperationPage)}, problems=(422,)),
)
async def list_operations(
    caller: Reader,
    services: Svc,
    session_id: SessionFilter = None,
    lane: LaneFilter = None,
    status: OperationStatus | None = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Response:
    """Receipts of the tenant, newest first."""
    found = await services.catalog.list_operations(
        caller.tenant_id,
        session_id=session_id,
        lane=lane,
        status=status,
        cursor=parse_instant_cursor(cursor),
        limit=limit + 1,
    )
    rows, following = page(found, limit, lambda item: instant_cursor(item.accepted_at, item.id))
    return answer(OperationPage(data=tuple(map(receipt_view, rows)), next_cursor=following))


@router.get("/operations/{operation_id}", **route("getOperation", {200: _RECEIPT}))
async def get_operation(
    request: Request,
    operation_id: OperationId,
    caller: Reader,
    services: Svc,
    context: Ctx,
    wait: WaitQuery = None,
) -> Response:
    """One receipt, kept for ever; with `wait`, once the operation is over or the time is up."""
    receipt = await find_receipt(services.pool, caller.tenant_id, operation_id)
    if receipt is not None and receipt.status == "open" and wait:
        receipt = await wait_for_end(
            services, request, caller.tenant_id, receipt.session_id, operation_id, wait
        )
    if receipt is None:
        raise not_found("OperationNotFound", "operation")
    return answer(await full_view(services, caller.tenant_id, receipt, context))


@router.post(
    "/operations/{operation_id}/abort",
    **route("abortOperation", {202: _ABORTED}, problems=(404, 409)),
)
async def abort_operation(
    operation_id: OperationId, caller: Writer, services: Svc, context: Ctx
) -> Response:
    """Cancel this operation if it is open; from any process, whoever drives it."""
    receipt = await find_receipt(services.pool, caller.tenant_id, operation_id)
    if receipt is None:
        raise not_found("OperationNotFound", "operation")
    command = RequestAbort(lane=receipt.lane, operation_id=operation_id)
    return answer(await run(services, caller, receipt.session_id, command, context), 202)
