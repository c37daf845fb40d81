"""Holds every answer of the API against its own OpenAPI document."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
from fastapi import FastAPI


class Contract:
    """Checks answers: the status is declared, and the body has the declared shape."""

    def __init__(self, app: FastAPI) -> None:
        self.document = app.openapi()
        self._routes = [
            (re.compile(re.sub(r"\\\{[^/]+?\\\}", "[^/]+", re.escape(path)) + "$"), operations)
            for path, operations in self.document["paths"].items()
        ]
        self.checked: set[str] = set()

    def operation(self, method: str, path: str) -> dict[str, Any] | None:
        """What the document says of a request."""
        for pattern, operations in self._routes:
            if pattern.match(path) and method.lower() in operations:
                return operations[method.lower()]
        return None

    async def check(self, response: httpx.Response) -> None:
        """An httpx response hook."""
        operation = self.operation(response.request.method, response.request.url.path)
        if operation is None:
            return
        declared = operation["responses"].get(str(response.status_code))
        await_body = response.headers.get("content-type", "").partition(";")[0]
        if await_body == "text/event-stream":
            return
        body = await response.aread()
        assert declared is not None, (operation["operationId"], response.status_code, body)
        self.checked.add(operation["operationId"])
        content = declared.get("content")
        if content is None:
            assert body == b"", body
            return
        assert await_body in content, (operation["operationId"], await_body)
        value = json.loads(body) if await_body.endswith("json") else body.decode()
        self.validate(value, content[await_body]["schema"])

    def validate(self, value: object, schema: dict[str, Any]) -> None:
        """Raise unless the value fits the schema."""
        whole = {**schema, "components": self.document["components"]}
        jsonschema.Draft202012Validator(whole).validate(value)
