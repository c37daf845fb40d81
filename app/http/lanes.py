"""Lanes: list, create, read, configure."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, field_validator

from app.http.auth import Caller, Reader, Writer
from app.http.bodies import read, read_raw
from app.http.calls import Ctx, Svc, answer, run
from app.http.idempotency import Key, fingerprint, make_once
from app.http.openapi import route
from app.http.parameters import Lane, SessionId, canonical_uuid, is_text
from app.http.problems import invalid, rejection
from app.http.services import Services
from app.http.wire import LaneChanges, LanePage, LaneView
from harness.codec import decode, encode
from harness.context import Context
from harness.errors import InvalidLane
from harness.operation import values
from harness.operation.results import LaneExecution, LaneInfo
from workers.commands import ConfigureLane, CreateLane, Inspect, InspectLanes, RequestKey

router = APIRouter(prefix="/v1/sessions/{session_id}/lanes", tags=["lanes"])

# Any: pyright cannot name a tuple type as type[T]; the decoder takes it.
_LANES: Any = tuple[LaneInfo, ...]


class NewLane(BaseModel):
    """A lane to create; `at` names the entry where it starts, null the root."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=200)
    at: str | None = None

    @field_validator("at")
    @classmethod
    def check_at(cls, value: str | None) -> str | None:
        """A UUID, in its canonical form."""
        found = None if value is None else canonical_uuid(value)
        if value is not None and found is None:
            raise ValueError("it is not a UUID")
        return found


_VIEW = ("Lane", LaneView)


@router.get("", **route("listLanes", {200: ("LanePage", LanePage)}))
async def list_lanes(
    session_id: SessionId, caller: Reader, services: Svc, context: Ctx
) -> Response:
    """Every lane of the session, and what it does."""
    found = await run(services, caller, session_id, InspectLanes(), context)
    return answer(LanePage(data=decode(found, _LANES)))


@router.post(
    "",
    **route(
        "createLane",
        {201: _VIEW},
        body=("NewLane", NewLane),
        examples={"root": {"name": "review", "at": None}},
        problems=(404, 409),
    ),
)
async def create_lane(
    session_id: SessionId,
    given: Annotated[tuple[bytes, NewLane], Depends(read_raw(NewLane))],
    caller: Writer,
    services: Svc,
    context: Ctx,
    key: Key = None,
) -> Response:
    """Create a lane; its name is permanent. The same key is the same lane: it is answered as it is by
    then."""
    raw, body = given
    reason = _unusable(body.name)
    if reason is not None:
        message = f"invalid lane name: {reason}"
        raise rejection(InvalidLane(message=message, lane=body.name, reason=reason))

    async def make(request: RequestKey | None) -> bytes:
        command = CreateLane(name=body.name, at=body.at, request=request)
        await run(services, caller, session_id, command, context)
        return encode(await made(body.name))

    async def made(name: str) -> LaneView:
        return await _view(services, caller, session_id, name, context)

    asked = fingerprint("lane", session_id, raw)
    return await make_once(services, caller.tenant_id, key, asked, 201, make, made)


def _unusable(name: str) -> str | None:
    if "/" in name or name in (".", ".."):
        return "it cannot stand in a URL's path"
    return None if is_text(name) else "it contains NUL or lone surrogates"


@router.get("/{lane}", **route("getLane", {200: _VIEW}))
async def get_lane(
    session_id: SessionId, lane: Lane, caller: Reader, services: Svc, context: Ctx
) -> Response:
    """One lane: where it stands, its configuration, what it does."""
    return answer(await _view(services, caller, session_id, lane, context))


@router.patch(
    "/{lane}",
    **route(
        "configureLane",
        {200: _VIEW},
        body=("LaneChanges", LaneChanges),
        examples={"think": {"thinkingLevel": "high"}},
    ),
)
async def configure_lane(
    session_id: SessionId,
    lane: Lane,
    body: Annotated[LaneChanges, Depends(read(LaneChanges))],
    caller: Writer,
    services: Svc,
    context: Ctx,
) -> Response:
    """Change what the lane's next step uses."""
    tools = None if body.active_tools is msgspec.UNSET else body.active_tools
    if tools is not None and len(set(tools)) != len(tools):
        raise invalid("body.activeTools", "a tool name appears twice")
    command = ConfigureLane(
        lane=lane,
        model=None if body.model is msgspec.UNSET else body.model,
        thinking_level=None if body.thinking_level is msgspec.UNSET else body.thinking_level,
        active_tools=tools,
    )
    await run(services, caller, session_id, command, context)
    return answer(await _view(services, caller, session_id, lane, context))


async def _view(
    services: Services, caller: Caller, session_id: str, lane: str, context: Context
) -> LaneView:
    inspected = await run(services, caller, session_id, Inspect(lane=lane), context)
    execution = decode(inspected, LaneExecution)
    reader = services.sessions.reader(caller.tenant_id, session_id)
    stored = await reader.get_value(values.lane_config(lane), context)
    configuration = None if stored is None else stored.value
    return LaneView(
        lane=execution.lane,
        leaf_id=execution.leaf_id,
        model=execution.configured_model,
        thinking_level=None if configuration is None else configuration.thinking_level,
        active_tools=None if configuration is None else configuration.active_tool_names,
        current=execution.current,
        last_result=execution.last_result,
    )
