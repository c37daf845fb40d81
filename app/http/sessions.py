"""Sessions: create, list, read, change, delete."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from app.http.auth import Caller, Reader, Writer
from app.http.bodies import parse, read, read_raw
from app.http.calls import Ctx, Svc, answer, listed, no_content, run
from app.http.cursors import instant_cursor, page, parse_instant_cursor
from app.http.idempotency import REPLAYED, Key, fingerprint, refused
from app.http.openapi import route
from app.http.parameters import AgentName, CursorText, Limit, SessionId, check_new_id, is_text
from app.http.problems import Problem, invalid
from app.http.services import Services
from app.http.wire import SessionPage, SessionView
from harness.codec import decode, encode_str
from harness.errors import SessionInUse
from harness.storage.metadata import SessionMetadata
from harness.usage import ZERO_USAGE, Usage
from storage_pg.catalog import SessionListing
from storage_pg.idempotency import IdempotencyKey, KeyConflict, Replay, Unanswered
from storage_pg.sessions import NewSession, SessionExists
from workers.commands import SetName

router = APIRouter(prefix="/v1", tags=["sessions"])

MAX_METADATA_BYTES = 16_384
_LINGER_SECONDS = 2.0
_LINGER_PAUSE = 0.05
_METADATA = "JSON of the application; sessions are listed by what it contains."


def _check_text(text: str | None) -> str | None:
    if text is not None and not is_text(text):
        raise ValueError("neither NUL nor lone surrogates are allowed here")
    return text


def checked_metadata(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """The metadata; raises `ValueError` for what is too large or cannot be filtered on."""
    if metadata is not None:
        text = encode_str(metadata)
        if len(text) > MAX_METADATA_BYTES:
            raise ValueError(f"it has more than {MAX_METADATA_BYTES} bytes")
        if not _all_text(metadata):
            raise ValueError("neither NUL nor lone surrogates are allowed here")
    return metadata


def _all_text(value: object) -> bool:
    match value:
        case str():
            return is_text(value)
        case dict():
            items = cast("dict[str, object]", value)
            return all(is_text(key) and _all_text(item) for key, item in items.items())
        case list():
            return all(_all_text(item) for item in cast("list[object]", value))
        case _:
            return True


class _Body(BaseModel):
    """Common rules of request bodies."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, strict=True)


class CreateSession(_Body):
    """A session to make; everything has a default."""

    id: str | None = Field(default=None, description="A UUIDv7 of the caller's own.")
    agent: str | None = Field(default=None, min_length=1, max_length=200)
    name: str | None = Field(default=None, max_length=500)
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any], description=_METADATA)

    check_id = field_validator("id")(check_new_id)
    check_text = field_validator("agent", "name")(_check_text)
    check_metadata = field_validator("metadata")(checked_metadata)


class ChangeSession(_Body):
    """What to change of a session; what is left out stays, null removes the name."""

    name: str | None = Field(default=None, max_length=500)
    metadata: dict[str, Any] | None = Field(default=None, description=_METADATA)

    check_text = field_validator("name")(_check_text)
    check_metadata = field_validator("metadata")(checked_metadata)


_VIEW = ("Session", SessionView)


@router.post(
    "/sessions",
    **route(
        "createSession",
        {201: _VIEW},
        body=("CreateSession", CreateSession),
        examples={"named": {"name": "first", "metadata": {"team": "support"}}},
        problems=(409,),
    ),
)
async def create_session(
    given: Annotated[tuple[bytes, CreateSession], Depends(read_raw(CreateSession))],
    caller: Writer,
    services: Svc,
    key: Key = None,
) -> Response:
    """Make a session with an idle lane `main`."""
    raw, body = given
    new = NewSession(id=body.id, agent=body.agent, name=body.name, metadata=body.metadata)
    try:
        if key is None:
            made = await services.sessions.create(caller.tenant_id, new)
            return answer(_new_view(made, new), 201, _location(made.id))
        return await _create_once(
            services, caller, new, IdempotencyKey(key, fingerprint("session", raw))
        )
    except SessionExists as error:
        raise Problem(409, "SessionExists", "The session id is taken; use another one.") from error


async def _create_once(
    services: Services, caller: Caller, new: NewSession, key: IdempotencyKey
) -> Response:
    def kept(metadata: SessionMetadata) -> tuple[int, str]:
        return 201, encode_str(_new_view(metadata, new))

    made = await services.sessions.create_once(caller.tenant_id, new, key, kept)
    match made:
        case SessionMetadata():
            return answer(_new_view(made, new), 201, _location(made.id))
        case Replay(status=status, response=response):
            if status != 201:
                raise refused(KeyConflict())
            view = decode(response, SessionView)
            return answer(response.encode(), status, {**REPLAYED, **_location(view.id)})
        case KeyConflict() | Unanswered():
            raise refused(made)


@router.get(
    "/sessions", **route("listSessions", {200: ("SessionPage", SessionPage)}, problems=(422,))
)
async def list_sessions(
    caller: Reader,
    services: Svc,
    cursor: CursorText = None,
    limit: Limit = 50,
    agent: AgentName = None,
    metadata: Annotated[
        str | None,
        Query(
            max_length=4_000,
            description="A JSON object: sessions whose metadata contains it.",
            examples=['{"team": "support"}'],
        ),
    ] = None,
) -> Response:
    """Sessions of the tenant, newest first."""
    found = await services.catalog.list_sessions(
        caller.tenant_id,
        metadata=None if metadata is None else metadata_filter(metadata),
        agent=agent,
        cursor=parse_instant_cursor(cursor),
        limit=limit + 1,
    )
    rows, following = page(found, limit, lambda item: instant_cursor(item.created_at, item.id))
    return answer(SessionPage(data=tuple(map(view_of, rows)), next_cursor=following))


def metadata_filter(text: str) -> dict[str, Any]:
    """The JSON object of a query parameter; raises `Problem`."""
    try:
        found = checked_metadata(parse(text.encode("utf-8", "surrogatepass"), dict[str, Any]))
    except (Problem, ValueError) as error:
        reason = error.detail if isinstance(error, Problem) else str(error)
        raise invalid("query.metadata", f"it must be a JSON object: {reason}") from error
    return found or {}


@router.get("/sessions/{session_id}", **route("getSession", {200: _VIEW}))
async def get_session(session_id: SessionId, caller: Reader, services: Svc) -> Response:
    """One session."""
    return answer(view_of(await listed(services, caller, session_id)))


@router.patch(
    "/sessions/{session_id}",
    **route(
        "changeSession",
        {200: _VIEW},
        body=("ChangeSession", ChangeSession),
        examples={"rename": {"name": "second"}},
    ),
)
async def change_session(
    session_id: SessionId,
    body: Annotated[ChangeSession, Depends(read(ChangeSession))],
    caller: Writer,
    services: Svc,
    context: Ctx,
) -> Response:
    """Rename a session, replace its metadata."""
    if "metadata" in body.model_fields_set and body.metadata is not None:
        await listed(services, caller, session_id)
        await services.catalog.set_metadata(caller.tenant_id, session_id, body.metadata)
    if "name" in body.model_fields_set:
        await run(services, caller, session_id, SetName(name=body.name), context)
    return answer(view_of(await listed(services, caller, session_id)))


@router.delete("/sessions/{session_id}", **route("deleteSession", {204: None}, problems=(404, 409)))
async def delete_session(session_id: SessionId, caller: Writer, services: Svc) -> Response:
    """Remove a session and everything in it but the receipts of its operations.

    Refused while a host works on it: abort what is open first.
    """
    clock = services.environment.clock
    deadline = clock.monotonic() + _LINGER_SECONDS
    while True:
        try:
            await services.sessions.delete(caller.tenant_id, session_id)
            return no_content()
        except SessionInUse:
            # Who has just worked on it keeps it for a moment.
            if clock.monotonic() >= deadline:
                raise
        await clock.sleep(_LINGER_PAUSE)


def view_of(session: SessionListing) -> SessionView:
    """A session as this service shows it."""
    return SessionView(
        id=session.id,
        created_at=session.created_at,
        updated_at=session.updated_at,
        agent=session.agent,
        name=session.name,
        metadata=dict(session.metadata),
        cwd=session.cwd,
        parent_session_id=session.parent_session_id,
        storage_version=session.storage_version,
        message_count=session.message_count,
        usage=decode(session.usage, Usage),
    )


def _new_view(made: SessionMetadata, new: NewSession) -> SessionView:
    return SessionView(
        id=made.id,
        created_at=made.created_at,
        updated_at=made.created_at,
        agent=new.agent,
        name=new.name,
        metadata=made.metadata or {},
        message_count=0,
        usage=ZERO_USAGE,
        storage_version=made.storage_version,
    )


def _location(session_id: str) -> dict[str, str]:
    return {"Location": f"/v1/sessions/{session_id}"}
