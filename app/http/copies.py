"""Whole sessions: forked, exported as a file, imported from one (§2.7, design §7)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing
from typing import Annotated, Literal

import anyio
import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from app.http.auth import Reader, Writer
from app.http.bodies import read_raw
from app.http.calls import Ctx, Svc, answer, listed, reading
from app.http.idempotency import REPLAYED, Key, fingerprint, id_for_key, once
from app.http.openapi import route
from app.http.parameters import AgentName, NewId, SessionId, canonical_uuid, check_new_id
from app.http.problems import Problem, rejection
from app.http.sessions import checked_metadata, view_of
from app.http.wire import SessionView
from harness.codec import decode, encode
from harness.context import Context
from harness.errors import (
    HarnessError,
    InvalidArgument,
    NewerVersion,
    StorageCorrupt,
    UnknownTarget,
)
from harness.session.export_file import (
    OpenOperations,
    Summary,
    Tally,
    TargetDiffers,
    TransferDamaged,
    export_header,
    record_line,
)
from harness.session.fork import BranchFork, ForkOptions, TreeFork, initial_records
from harness.session.transfer import ImportOptions, import_file, open_export, receive
from harness.storage.metadata import SessionMetadata
from harness.storage.records import Record
from storage_pg.copies import PostgresCopies
from storage_pg.sessions import SessionExists

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

JSONL = "application/jsonl"
# What clients call such a file; the last two are what they say of any file.
_TAKEN = (JSONL, "application/x-ndjson", "application/octet-stream", "text/plain")
_LATEST = 2**53 - 1
_VIEW = ("Session", SessionView)

SessionFile = Annotated[
    str,
    msgspec.Meta(
        description="A session as JSON lines, format 4: a header, then one record a line. The header "
        "of an export says how many records follow and the SHA-256 of their lines (`export`)."
    ),
]


class ForkSession(BaseModel):
    """What to copy: one path, which becomes the lane `main`, or the whole tree with its lanes."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, strict=True)

    scope: Literal["branch", "tree"] = "branch"
    entry_id: str | None = Field(
        default=None, description="Where the path ends; where lane `main` stands otherwise."
    )
    position: Literal["before", "at"] | None = Field(
        default=None, description="`before` leaves that entry itself out; `at` is the default."
    )
    id: str | None = Field(default=None, description="A UUIDv7 of the caller's own.")

    check_id = field_validator("id")(check_new_id)

    @field_validator("entry_id")
    @classmethod
    def check_entry_id(cls, value: str | None) -> str | None:
        """A UUID, in its canonical form."""
        found = None if value is None else canonical_uuid(value)
        if value is not None and found is None:
            raise ValueError("it is not a UUID")
        return found

    @model_validator(mode="after")
    def check_scope(self) -> ForkSession:
        """A tree has no end."""
        if self.scope == "tree" and (self.entry_id is not None or self.position is not None):
            raise ValueError("entryId and position say where a branch ends")
        return self

    def options(self, new_id: str | None) -> ForkOptions:
        """The same for the repository."""
        if self.scope == "tree":
            return TreeFork(id=new_id)
        return BranchFork(entry_id=self.entry_id, position=self.position or "at", id=new_id)


class ImportedSession(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The session that was made, and how many records it holds under which digest."""

    session: SessionView
    summary: Summary


@router.post(
    "/{session_id}/fork",
    **route(
        "forkSession",
        {201: _VIEW},
        body=("ForkSession", ForkSession),
        examples={
            "main": {},
            "before": {"entryId": "01997a3e-6f5c-7d2e-9a51-6b1f6a2f9c11", "position": "before"},
            "tree": {"scope": "tree"},
        },
        problems=(404, 409),
    ),
)
async def fork_session(
    session_id: SessionId,
    given: Annotated[tuple[bytes, ForkSession], Depends(read_raw(ForkSession))],
    caller: Writer,
    services: Svc,
    context: Ctx,
    key: Key = None,
) -> Response:
    """Copy a conversation, or a part of it, into a new session; whoever works on it is not disturbed.

    Entries keep their ids. Nothing of the work goes along: operations, queues, costs. The same key,
    or the same `id`, is the same fork: it is answered as it is by then.
    """
    raw, body = given
    reader = await reading(services, caller, session_id)
    if body.entry_id is not None and not await reader.get_entries([body.entry_id], context):
        raise rejection(UnknownTarget(message=f"no entry {body.entry_id}", target_id=body.entry_id))
    new_id = body.id
    if key is not None:
        asked = fingerprint("fork", session_id, raw)
        new_id, _ = await id_for_key(services, caller.tenant_id, key, asked, body.id)
    copies = services.copies(caller.tenant_id)
    try:
        async with services.copying:
            made = await copies.fork(session_id, body.options(new_id), context)
    except SessionExists as error:
        assert new_id is not None
        known = await services.catalog.get_session(caller.tenant_id, new_id)
        if known is None or known.parent_session_id != session_id:
            raise _taken() from error
        return answer(view_of(known), 201, {**REPLAYED, **_location(new_id)})
    view = view_of(await listed(services, caller, made.id))
    return answer(view, 201, _location(made.id))


@router.get(
    "/{session_id}/export",
    **route(
        "exportSession",
        {200: ("SessionFile", SessionFile)},
        media_type=JSONL,
        problems=(404, 409),
    ),
)
async def export_session(
    session_id: SessionId, caller: Reader, services: Svc, context: Ctx
) -> Response:
    """The session as a file, as of one instant: JSON lines in format 4. An import makes the same
    session of it, here or anywhere."""
    stack = AsyncExitStack()
    try:
        # Only the reading counts: sending takes as long as its receiver.
        async with services.copying:
            export = await stack.enter_async_context(
                open_export(services.copies(caller.tenant_id), session_id, context)
            )
    except BaseException:
        await stack.aclose()
        raise
    headers = {
        "Content-Length": str(export.size),
        "Content-Disposition": f'attachment; filename="{session_id}.jsonl"',
    }
    return _Download(export.chunks(), stack, headers)


class _Download(StreamingResponse):
    """Sends a file and lets go of it, however the sending ends."""

    def __init__(
        self, chunks: AsyncGenerator[bytes], stack: AsyncExitStack, headers: dict[str, str]
    ) -> None:
        super().__init__(chunks, headers=headers, media_type=JSONL)
        self._chunks = chunks
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._chunks.aclose()
                await self._stack.aclose()


def _example() -> str:
    """The file of a session in which nothing was said."""
    tally, lines = Tally(), list[bytes]()
    for record in initial_records():
        lines.append(record_line(record))
        tally.add(lines[-1])
    metadata = SessionMetadata(
        id="01997a3e-6f5c-7d2e-9a51-6b1f6a2f9c12", created_at=1_758_700_000_000
    )
    header = export_header(metadata, len(lines) + 1, tally.summary())
    return b"".join([header, *lines]).decode()


@router.post(
    "/import",
    **route(
        "importSession",
        {201: ("ImportedSession", ImportedSession)},
        body=("SessionFile", SessionFile),
        body_media_type=JSONL,
        examples={"empty": _example()},
        problems=(409,),
    ),
)
async def import_session(
    request: Request,
    caller: Writer,
    services: Svc,
    context: Ctx,
    id: NewId = None,
    operations: Annotated[
        OpenOperations,
        Query(
            description="`keep` takes an open operation along, to be driven here: only for a session "
            "that nothing drives any more where it comes from."
        ),
    ] = "refuse",
    agent: AgentName = None,
    key: Key = None,
) -> Response:
    """Make a session from an export, from a session's own JSONL file, or from a legacy (v3) one.

    It gets the file's id unless `id` names another. Either the whole session is there afterwards, or
    nothing is.
    """
    kind = request.headers.get("content-type", JSONL).partition(";")[0].strip().lower()
    if kind not in _TAKEN:
        raise Problem(415, "UnsupportedMediaType", f"The body must be {JSONL}.")
    try:
        async with receive(_body(request)) as arrival:

            async def work() -> bytes:
                target = _Target(services.copies(caller.tenant_id), agent)
                options = ImportOptions(id=id, operations=operations)
                try:
                    async with services.copying:
                        imported = await import_file(target, arrival.path, options, context)
                except HarnessError as error:
                    problem = _refusal(error)
                    if problem is None:
                        raise
                    raise problem from error
                session = view_of(await listed(services, caller, imported.metadata.id))
                return encode(ImportedSession(session=session, summary=imported.summary))

            asked = fingerprint("import", id or "", operations, agent or "", arrival.sha256)
            made = await once(services, caller.tenant_id, key, asked, 201, work)
    except ClientDisconnect as error:
        raise Problem(400, "MalformedBody", "The body ended before it was complete.") from error
    view = decode(bytes(made.body), ImportedSession)
    made.headers.update(_location(view.session.id))
    return made


async def _body(request: Request) -> AsyncIterator[bytes]:
    async with aclosing(request.stream()) as parts:
        async for part in parts:
            yield part


class _Target:
    """A tenant's sessions as an import's target, with what holds of every session of this service."""

    def __init__(self, copies: PostgresCopies, agent: str | None) -> None:
        self._copies = copies
        self._agent = agent
        self.snapshot = copies.snapshot
        self.delete = copies.delete

    async def restore(
        self,
        metadata: SessionMetadata,
        records: Iterable[Record],
        next_seq: int,
        context: Context,
    ) -> None:
        """Make the session; raises what the tenant's sessions raise."""
        if not 0 <= metadata.created_at <= _LATEST:
            raise InvalidArgument("the file: createdAt is no time in milliseconds")
        try:
            checked_metadata(metadata.metadata)
        except ValueError as error:
            raise InvalidArgument(f"the file: metadata: {error}") from error
        parent = metadata.parent_session_id
        if parent is not None and canonical_uuid(parent) != parent:
            # A name from another kind of repository: kept where unresolved parents are kept.
            metadata = msgspec.structs.replace(
                metadata, parent_session_id=None, legacy_parent_session_path=parent
            )
        await self._copies.restore(metadata, records, next_seq, context, agent=self._agent)


def _refusal(error: HarnessError) -> Problem | None:
    """The problem of a file that cannot be imported; None for what is no fault of the file."""
    match error:
        case SessionExists():
            return _taken()
        case TargetDiffers():
            return None
        case TransferDamaged():
            return Problem(422, "TransferDamaged", str(error))
        case StorageCorrupt():
            return Problem(422, "InvalidSessionFile", str(error))
        case NewerVersion():
            return Problem(422, "NewerVersion", "A newer Laneway wrote this file.")
        case InvalidArgument():
            return Problem(422, "InvalidRequest", str(error))
        case _:
            return None


def _taken() -> Problem:
    return Problem(409, "SessionExists", "The session id is taken; use another one.")


def _location(session_id: str) -> dict[str, str]:
    return {"Location": f"/v1/sessions/{session_id}"}
