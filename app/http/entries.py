"""Entries of a session, whatever their branch, and the labels on them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from app.http.auth import Caller, Reader, Writer
from app.http.bodies import read, read_raw
from app.http.calls import Ctx, Svc, answer, no_content, reading, require_lane, run
from app.http.cursors import page, parse_seq_cursor, seq_bounds, seq_cursor
from app.http.idempotency import Key, fingerprint, make_once, queued
from app.http.openapi import route
from app.http.parameters import (
    CursorText,
    CustomType,
    EntryId,
    Lane,
    Limit,
    SessionId,
    StartId,
    StopAtId,
)
from app.http.problems import not_found, rejection
from app.http.services import Services
from app.http.wire import AppendInput, AppendMessageInput, EntryPage, LabelPage, LabelView
from harness.context import Context
from harness.entries import Entry, EntryType
from harness.errors import UnknownTarget
from harness.operation import values
from harness.operation.results import QueuedEntry
from harness.result import Err
from harness.storage.protocol import BranchOrder, BranchScan, EntryScan, SeqOrder
from workers.commands import AppendCustom, AppendMessage, RequestKey, SetLabel

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["entries"])

# Any: pyright cannot name a union as type[T]; the decoder takes it.
_APPEND: Any = AppendInput


class PutLabel(BaseModel):
    """A label for an entry."""

    model_config = ConfigDict(extra="forbid", strict=True)

    label: str = Field(min_length=1, max_length=1_000)


@router.get(
    "/entries", **route("listEntries", {200: ("EntryPage", EntryPage)}, problems=(404, 422))
)
async def list_entries(
    session_id: SessionId,
    caller: Reader,
    services: Svc,
    context: Ctx,
    type: EntryType | None = None,
    custom_type: CustomType = None,
    order: SeqOrder = "asc",
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Response:
    """Entries of all branches in the order in which they were committed."""
    reader = await reading(services, caller, session_id)
    from_seq, to_seq = seq_bounds(cursor, order)
    found = await reader.scan_entries(
        EntryScan(
            type=type,
            custom_type=custom_type,
            from_seq=from_seq,
            to_seq=to_seq,
            order=order,
            limit=limit + 1,
        ),
        context,
    )
    return answer(_page(found, limit))


@router.get("/entries/{entry_id}", **route("getEntry", {200: ("Entry", Entry)}))
async def get_entry(
    session_id: SessionId, entry_id: EntryId, caller: Reader, services: Svc, context: Ctx
) -> Response:
    """One entry."""
    reader = await reading(services, caller, session_id)
    found = (await reader.get_entries([entry_id], context)).get(entry_id)
    if found is None:
        raise not_found("EntryNotFound", "entry")
    return answer(found)


@router.get("/labels", **route("listLabels", {200: ("LabelPage", LabelPage)}))
async def list_labels(
    session_id: SessionId, caller: Reader, services: Svc, context: Ctx
) -> Response:
    """Every label of the session."""
    reader = await reading(services, caller, session_id)
    found = await reader.scan_values(values.entry_label(""), context)
    return answer(
        LabelPage(data=tuple(LabelView(entry_id=at.address.key, label=at.value) for at in found))
    )


@router.put(
    "/entries/{entry_id}/label",
    **route(
        "putLabel",
        {200: ("Label", LabelView)},
        body=("PutLabel", PutLabel),
        examples={"bookmark": {"label": "before the refactoring"}},
    ),
)
async def put_label(
    session_id: SessionId,
    entry_id: EntryId,
    body: Annotated[PutLabel, Depends(read(PutLabel))],
    caller: Writer,
    services: Svc,
    context: Ctx,
) -> Response:
    """Label an entry, or change its label."""
    await _set_label(services, caller, session_id, entry_id, body.label, context)
    return answer(LabelView(entry_id=entry_id, label=body.label))


@router.delete("/entries/{entry_id}/label", **route("deleteLabel", {204: None}))
async def delete_label(
    session_id: SessionId, entry_id: EntryId, caller: Writer, services: Svc, context: Ctx
) -> Response:
    """Remove an entry's label, if it has one."""
    await _set_label(services, caller, session_id, entry_id, None, context)
    return no_content()


@router.get(
    "/lanes/{lane}/branch",
    **route("scanBranch", {200: ("EntryPage", EntryPage)}, problems=(404, 422)),
)
async def scan_branch(
    session_id: SessionId,
    lane: Lane,
    caller: Reader,
    services: Svc,
    context: Ctx,
    start: StartId = None,
    stop_at_type: Annotated[EntryType | None, Query(alias="stopAtType")] = None,
    stop_at_id: StopAtId = None,
    type: EntryType | None = None,
    custom_type: CustomType = None,
    order: BranchOrder = "newestFirst",
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Response:
    """The way from an entry (the lane's leaf) to the root."""
    reader = await reading(services, caller, session_id)
    begin = await require_lane(reader, lane, context)
    if start is not None:
        if start not in await reader.get_entries([start], context):
            raise rejection(UnknownTarget(message=f"no entry {start}", target_id=start))
        begin = start
    found: list[Entry] = []
    if begin is not None:
        found = await reader.scan_branch(
            BranchScan(
                start=begin,
                stop_at_type=stop_at_type,
                stop_at_id=stop_at_id,
                type=type,
                custom_type=custom_type,
                order=order,
                cursor=parse_seq_cursor(cursor),
                limit=limit + 1,
            ),
            context,
        )
    return answer(_page(found, limit))


_MESSAGE = {
    "type": "message",
    "message": {"role": "user", "content": "Noted.", "timestamp": 1_800_000_000_000},
}


@router.post(
    "/lanes/{lane}/entries",
    **route(
        "appendEntry",
        {201: ("QueuedEntry", QueuedEntry)},
        body=("AppendEntry", AppendInput),
        examples={
            "message": _MESSAGE,
            "custom": {"type": "custom", "customType": "ticket", "data": {"number": 7}},
        },
        problems=(404, 409),
    ),
)
async def append_entry(
    session_id: SessionId,
    lane: Lane,
    given: Annotated[tuple[bytes, AppendInput], Depends(read_raw(_APPEND))],
    caller: Writer,
    services: Svc,
    context: Ctx,
    key: Key = None,
) -> Response:
    """Append to the lane: at once when it is idle, at the next checkpoint during a run."""
    raw, body = given
    command = (
        AppendMessage(lane=lane, message=body.message)
        if isinstance(body, AppendMessageInput)
        else AppendCustom(lane=lane, custom_type=body.custom_type, data=body.data)
    )

    async def make(request: RequestKey | None) -> bytes:
        keyed = msgspec.structs.replace(command, request=request)
        return await run(services, caller, session_id, keyed, context)

    asked = fingerprint("append", session_id, lane, raw)
    return await make_once(services, caller.tenant_id, key, asked, 201, make, queued)


async def _set_label(
    services: Services,
    caller: Caller,
    session_id: str,
    entry_id: str,
    label: str | None,
    context: Context,
) -> None:
    command = SetLabel(target_id=entry_id, label=label)
    reply = await services.host.execute(caller.tenant_id, session_id, command, context)
    if isinstance(reply, Err):
        # Here the target stands in the path.
        if isinstance(reply.error, UnknownTarget):
            raise not_found("EntryNotFound", "entry")
        raise rejection(reply.error)


def _page(found: list[Entry], limit: int) -> EntryPage:
    rows, following = page(found, limit, lambda entry: seq_cursor(entry.seq))
    return EntryPage(data=rows, next_cursor=following)
