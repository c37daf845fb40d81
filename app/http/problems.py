"""What a request is told when it cannot be served: problem documents with stable codes (design §7).

A problem has `type` (`urn:laneway:lane-busy`), `title`, `status`, `detail`, `code` (`LaneBusy`),
`requestId`, and the fields of the error that it reports. Codes and types never change their meaning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, assert_never

import msgspec
import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from starlette.exceptions import HTTPException
from starlette.routing import Match

from harness import errors
from harness.codec import JsonValue, encode, valid_unicode
from workers import commands
from workers.routing import OutcomeUnknown

MEDIA_TYPE = "application/problem+json"

_log = logging.getLogger(__name__)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_RETRY_SOON = {"Retry-After": "1"}

# What an expected rejection is in HTTP. A code that is not here is a defect of this table.
REJECTIONS: dict[str, int] = {
    errors.LaneBusy.__name__: 409,
    errors.OperationMismatch.__name__: 409,
    errors.NoActiveRun.__name__: 409,
    errors.NoActiveOperation.__name__: 409,
    errors.NothingToResume.__name__: 409,
    errors.NothingToCompact.__name__: 409,
    errors.LaneExists.__name__: 409,
    errors.InvalidMessage.__name__: 422,
    errors.InvalidNavigation.__name__: 422,
    errors.InvalidLane.__name__: 422,
    errors.UnknownSkill.__name__: 422,
    errors.UnknownTemplate.__name__: 422,
    errors.UnknownTarget.__name__: 422,
    errors.Closed.__name__: 503,
    commands.UnknownLane.__name__: 404,
    commands.UnknownModel.__name__: 422,
    commands.InvalidRequest.__name__: 422,
    commands.OperationIdTaken.__name__: 409,
    commands.RequestInProgress.__name__: 409,
}
# Rejections that the same request may not meet again in a moment.
_PASSING = (errors.Closed, commands.RequestInProgress)


class Problem(HTTPException):
    """A request that is refused: raise it anywhere below a route.

    `fields` are added to the document; `headers` to the response.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        fields: Mapping[str, JsonValue] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.code = code
        self.fields = dict(fields or {})


def not_found(code: str, what: str) -> Problem:
    """Something does not exist, or belongs to somebody else: nobody can tell which."""
    return Problem(404, code, f"There is no such {what}.")


def invalid(path: str, message: str) -> Problem:
    """A value of the request is not allowed; `path` says which one."""
    return Problem(
        422,
        "InvalidRequest",
        f"{path}: {message}",
        fields={"errors": [{"path": path, "message": message}]},
    )


def unavailable(detail: str) -> Problem:
    """Something that this process depends on is away; the same request may work in a moment."""
    return Problem(503, "Unavailable", detail, headers=_RETRY_SOON)


def rejection(error: errors.TaggedError) -> Problem:
    """The problem of an expected rejection; its fields go into the document."""
    fields: dict[str, Any] = msgspec.to_builtins(error)
    detail = str(fields.pop("message"))
    code = str(fields.pop("code"))
    status = REJECTIONS.get(code, 500)
    headers = _RETRY_SOON if isinstance(error, _PASSING) else None
    return Problem(status, code, detail, fields=fields, headers=headers)


def storage_problem(error: errors.HarnessError) -> Problem:
    """The problem of a failure below the routes."""
    match error:
        case errors.SessionNotFound():
            return not_found("SessionNotFound", "session")
        case errors.InvalidArgument():
            return Problem(422, "InvalidRequest", str(error))
        case errors.SessionInUse():
            return Problem(
                409,
                "SessionInUse",
                "A host works on this session; try again in a moment.",
                headers=_RETRY_SOON,
            )
        case OutcomeUnknown():
            return Problem(
                503,
                "OutcomeUnknown",
                "The session's host went away while it worked on this; it may have been done.",
            )
        case errors.NewerVersion():
            return unavailable("A newer Laneway wrote this session; this process cannot open it.")
        case errors.StorageCorrupt() | errors.InvariantDefect():
            _log.error("contradictory data", exc_info=error)
            return Problem(500, "InternalError", "Stored data contradicts itself.")
        case _:
            _log.warning("a request met a failure", exc_info=error)
            return unavailable("The session's host or the database went away; try again.")


def problem_document(problem: Problem, request_id: str) -> dict[str, JsonValue]:
    """The document of a problem."""
    return {
        **problem.fields,
        "type": problem_type(problem.code),
        "title": _WORD.sub(" ", problem.code),
        "status": problem.status_code,
        "detail": problem.detail,
        "code": problem.code,
        "requestId": request_id,
    }


def problem_type(code: str) -> str:
    """The stable URN of a code."""
    return f"urn:laneway:{_WORD.sub('-', code).lower()}"


def problem_response(problem: Problem, request_id: str) -> Response:
    """The response of a problem."""
    return Response(
        encode(problem_document(problem, request_id)),
        status_code=problem.status_code,
        media_type=MEDIA_TYPE,
        headers=problem.headers,
    )


def install(app: FastAPI) -> None:
    """Answer everything that can go wrong with a problem document."""

    async def refused(request: Request, error: Exception) -> Response:
        problem = _problem(error)
        if problem.status_code == 405:
            problem.headers = {"Allow": ", ".join(_allowed(app, request))}
        request_id = request_id_of(request)
        response = problem_response(problem, request_id)
        # The answer to a defect is made outside of the middleware that gives others their id.
        response.headers["X-Request-Id"] = request_id
        return response

    for kind in (
        Problem,
        RequestValidationError,
        HTTPException,
        errors.HarnessError,
        OperationalError,
        InterfaceError,
        PoolExhausted,
        psycopg.OperationalError,
        psycopg.InterfaceError,
        Exception,
    ):
        app.add_exception_handler(kind, refused)


def _allowed(app: FastAPI, request: Request) -> list[str]:
    """The methods of a path; the framework knows those of the first route that has it."""
    methods: set[str] = set()
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in app.routes):
            methods.add(method)
    return sorted(methods)


def _problem(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return _validation(error)
        case HTTPException():
            return _from_http(error)
        case errors.HarnessError():
            return storage_problem(error)
        case (
            OperationalError()
            | InterfaceError()
            | PoolExhausted()
            | psycopg.OperationalError()
            | psycopg.InterfaceError()
        ):
            _log.warning("the database failed a request", exc_info=error)
            return unavailable("The database does not answer; try again.")
        case Exception():
            # It was logged on its way here, with the ids of the request.
            return Problem(500, "InternalError", "Something is broken here; it was logged.")
        case _:
            assert_never(error)


def _from_http(error: HTTPException) -> Problem:
    headers = dict(error.headers or {})
    match error.status_code:
        case 404:
            return Problem(404, "RouteNotFound", "There is no such path.", headers=headers)
        case 405:
            return Problem(405, "MethodNotAllowed", "This path has other methods.", headers=headers)
        case status:
            return Problem(status, "RequestRefused", str(error.detail), headers=headers)


def _validation(error: RequestValidationError) -> Problem:
    found: list[JsonValue] = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"])
        found.append({"path": valid_unicode(path), "message": valid_unicode(str(item["msg"]))})
    first = found[0] if found else {"path": "", "message": "invalid"}
    assert isinstance(first, Mapping)
    return Problem(
        422, "InvalidRequest", f"{first['path']}: {first['message']}", fields={"errors": found}
    )


def request_id_of(request: Request) -> str:
    """The id that this request's answer and log lines carry."""
    return str(request.scope.get("laneway.request_id", ""))
