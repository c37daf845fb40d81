"""The OpenAPI document: FastAPI's routes, with schemas generated from the durable types themselves.

A route says what it takes and what it answers by type; no shape is written a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic import BaseModel

from app.http.problems import MEDIA_TYPE, problem_type
from app.http.wire import ProblemDocument

_REF = "#/components/schemas/{name}"
_DESCRIPTION = """\
Durable agent sessions. Accepted work runs to an outcome, whatever dies in between.

Times are Unix milliseconds, ids UUIDs. Every error is a problem document with a stable `code`.
"""

_PROBLEMS: dict[int, str] = {
    400: "The body is not JSON, or it ended early.",
    401: "The API key is missing, wrong, expired or revoked.",
    403: "The API key lacks a scope.",
    404: "No such thing for this tenant.",
    409: "It contradicts what is going on; `code` says how.",
    413: "The body is too large.",
    415: "The body is of another type.",
    422: "A value is not allowed; `errors` or `detail` says which.",
    503: "A host or the database is away; try again after `Retry-After` seconds.",
}

# Everything that routes named, by the name it has in the document.
_types: dict[str, Any] = {"Problem": ProblemDocument}
_models: dict[str, type[BaseModel]] = {}


def route(
    operation_id: str,
    answers: Mapping[int, tuple[str, Any] | None],
    *,
    body: tuple[str, Any] | None = None,
    body_media_type: str = "application/json",
    examples: Mapping[str, object] | None = None,
    problems: Sequence[int] = (404,),
    media_type: str = "application/json",
    public: bool = False,
) -> dict[str, Any]:
    """Keyword arguments for a FastAPI route: what it takes and answers, by type.

    `answers` maps a status to a name and a type (None: no content), the first being the usual one;
    `body` is a name and a type, with `examples` of it. The name is the schema's in the document.
    """
    usual = {*problems}
    if not public:
        usual |= {401, 403, 503}
    if body is not None:
        usual |= {400, 413, 415, 422}
    responses: dict[int | str, dict[str, Any]] = {}
    for status, answer in answers.items():
        responses[status] = {"description": "Done." if status < 202 else "Accepted."}
        if answer is not None:
            responses[status]["content"] = {media_type: {"schema": _schema(*answer)}}
    for status in sorted(usual):
        refused = {MEDIA_TYPE: {"schema": _schema("Problem", ProblemDocument)}}
        responses[status] = {"description": _PROBLEMS[status], "content": refused}
    extra: dict[str, Any] = {}
    if body is not None:
        content: dict[str, Any] = {"schema": _schema(*body)}
        if examples:
            content["examples"] = {name: {"value": value} for name, value in examples.items()}
        extra["requestBody"] = {"required": True, "content": {body_media_type: content}}
    return {
        "operation_id": operation_id,
        "status_code": next(iter(answers)),
        "responses": responses,
        "openapi_extra": extra or None,
        "response_class": Response,
        "response_model": None,
    }


def _schema(name: str, type_: Any) -> dict[str, str]:
    if isinstance(type_, type) and issubclass(type_, BaseModel):
        _models[name] = type_
    else:
        _types[name] = type_
    return {"$ref": _REF.format(name=name)}


def install(app: FastAPI) -> None:
    """Let the application make its document this way, once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document


def _document(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(
        title="Laneway", version=app.version, description=_DESCRIPTION, routes=app.routes
    )
    names = list(_types)
    shapes, parts = msgspec.json.schema_components(
        [_types[name] for name in names], ref_template=_REF
    )
    schemas: dict[str, Any] = {**made.setdefault("components", {}).get("schemas", {}), **parts}
    own = {name: {"$ref": _REF.format(name=name)} for name in names}
    schemas |= {
        name: shape for name, shape in zip(names, shapes, strict=True) if shape != own[name]
    }
    for name, model in _models.items():
        shape = model.model_json_schema(
            by_alias=True, ref_template=_REF.replace("{name}", "{model}")
        )
        schemas.update(shape.pop("$defs", {}))
        schemas[name] = shape
    schemas["Problem"]["example"] = {
        "type": problem_type("LaneBusy"),
        "title": "Lane Busy",
        "status": 409,
        "detail": "lane main has an open run",
        "code": "LaneBusy",
        "requestId": "01997a3e-6f5c-7d2e-9a51-6b1f6a2f9c11",
        "lane": "main",
        "operationId": "01997a3e-6f5c-7d2e-9a51-6b1f6a2f9c10",
        "operationKind": "run",
    }
    _drop_unused(made, schemas)
    made["components"]["schemas"] = dict(sorted(schemas.items()))
    # Defaults may be tuples: made plain here, not only when it is sent.
    return msgspec.json.decode(msgspec.json.encode(made))


def _drop_unused(made: dict[str, Any], schemas: dict[str, Any]) -> None:
    """FastAPI describes its own validation errors, which this service never sends."""
    for path in made["paths"].values():
        for operation in path.values():
            answer = operation["responses"].get("422", {})
            shown = answer.get("content", {}).get("application/json", {}).get("schema", {})
            if shown.get("$ref", "").endswith("HTTPValidationError"):
                content = {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}}
                operation["responses"]["422"] = {
                    "description": _PROBLEMS[422],
                    "content": content,
                }
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
