"""One well-formed request for each route, by operation id: what access tests go through.

`{...}` in paths and bodies are ids of a tenant's session, entry, lane and operation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from harness.environment import Environment
from harness.session.export_file import record_line
from harness.session.fork import initial_records
from harness.storage.jsonl_format import header_line
from harness.storage.metadata import SessionMetadata
from tests.app.kit import Tenant


@dataclass(frozen=True, slots=True)
class Call:
    """A request: method, path, the scope that its key needs, and its JSON body or its file."""

    method: str
    path: str
    scope: str
    body: dict[str, Any] | None = None
    file: Callable[[], bytes] | None = None

    def filled(self, ids: dict[str, str]) -> tuple[str, str, dict[str, Any] | None]:
        """Method, path and body with the ids put in."""
        body = None if self.body is None else _fill(json.dumps(self.body), ids)
        return self.method, _fill(self.path, ids), None if body is None else json.loads(body)

    async def send(self, client: httpx.AsyncClient, ids: dict[str, str]) -> httpx.Response:
        """The answer to the request with the ids put in."""
        method, path, body = self.filled(ids)
        if self.file is not None:
            headers = {"Content-Type": "application/jsonl"}
            return await client.request(method, path, content=self.file(), headers=headers)
        return await client.request(method, path, json=body)


def _fill(text: str, ids: dict[str, str]) -> str:
    for name, value in ids.items():
        text = text.replace("{" + name + "}", value)
    return text


def empty_session(session_id: str | None = None) -> bytes:
    """The file of a session in which nothing was said."""
    lines = [record_line(record) for record in initial_records()]
    made = SessionMetadata(id=session_id or Environment.system().ids.next(), created_at=1)
    return header_line(made, len(lines) + 1) + b"".join(lines)


_USAGE = {
    "input": 1,
    "output": 0,
    "cacheRead": 0,
    "cacheWrite": 0,
    "totalTokens": 1,
    "cost": {"input": 0.0, "output": 0.0, "cacheRead": 0.0, "cacheWrite": 0.0, "total": 0.5},
}
_SESSION = "/v1/sessions/{session}"
_LANE = _SESSION + "/lanes/{lane}"
_READ, _WRITE, _USAGE_READ = "sessions:read", "sessions:write", "usage:read"

# Routes that answer whoever asks.
PUBLIC = {"livez", "readyz"}

# Routes that name nothing of a tenant's: another tenant gets an answer with nothing of this one.
OWN = {"createSession", "listSessions", "listOperations", "importSession", "search"}

CALLS: dict[str, Call] = {
    "createSession": Call("POST", "/v1/sessions", _WRITE, {}),
    "listSessions": Call("GET", "/v1/sessions", _READ),
    "getSession": Call("GET", _SESSION, _READ),
    "changeSession": Call("PATCH", _SESSION, _WRITE, {"name": "x", "metadata": {"a": 1}}),
    "listEntries": Call("GET", f"{_SESSION}/entries", _READ),
    "getEntry": Call("GET", f"{_SESSION}/entries/{{entry}}", _READ),
    "listLabels": Call("GET", f"{_SESSION}/labels", _READ),
    "putLabel": Call("PUT", f"{_SESSION}/entries/{{entry}}/label", _WRITE, {"label": "x"}),
    "deleteLabel": Call("DELETE", f"{_SESSION}/entries/{{entry}}/label", _WRITE),
    "scanBranch": Call("GET", f"{_LANE}/branch?start={{entry}}", _READ),
    "appendEntry": Call(
        "POST", f"{_LANE}/entries", _WRITE, {"type": "custom", "customType": "t", "data": 1}
    ),
    "listUsage": Call("GET", f"{_SESSION}/usage", _USAGE_READ),
    "recordUsage": Call("POST", f"{_SESSION}/usage", _WRITE, {"usage": _USAGE}),
    "getStats": Call("GET", f"{_SESSION}/stats", _READ),
    "listLanes": Call("GET", f"{_SESSION}/lanes", _READ),
    "createLane": Call("POST", f"{_SESSION}/lanes", _WRITE, {"name": "new", "at": "{entry}"}),
    "getLane": Call("GET", _LANE, _READ),
    "configureLane": Call("PATCH", _LANE, _WRITE, {"thinkingLevel": "high"}),
    "submitOperation": Call(
        "POST", f"{_LANE}/operations", _WRITE, {"kind": "prompt", "prompt": "echo: x"}
    ),
    "resumeLane": Call("POST", f"{_LANE}/resume", _WRITE),
    "abortLane": Call("POST", f"{_LANE}/abort", _WRITE),
    "listOperations": Call("GET", "/v1/operations?sessionId={session}", _READ),
    "getOperation": Call("GET", "/v1/operations/{operation}", _READ),
    "abortOperation": Call("POST", "/v1/operations/{operation}/abort", _WRITE),
    "steer": Call("POST", f"{_LANE}/steer", _WRITE, {"message": "x"}),
    "followUp": Call("POST", f"{_LANE}/follow-up", _WRITE, {"message": "x"}),
    "nextRun": Call("POST", f"{_LANE}/next-run", _WRITE, {"message": "x"}),
    "getQueue": Call("GET", f"{_LANE}/queue", _READ),
    "cancelQueued": Call("DELETE", f"{_LANE}/queue/{{entry}}", _WRITE),
    "getSnapshot": Call("GET", f"{_LANE}/snapshot", _READ),
    "streamLaneEvents": Call("GET", f"{_LANE}/events", _READ),
    "streamSessionEvents": Call("GET", f"{_SESSION}/events", _READ),
    "forkSession": Call("POST", f"{_SESSION}/fork", _WRITE, {"entryId": "{entry}"}),
    "exportSession": Call("GET", f"{_SESSION}/export", _READ),
    "importSession": Call("POST", "/v1/sessions/import", _WRITE, file=empty_session),
    "search": Call("GET", "/v1/search?q=secret", _READ),
    # Last: it is tried on a session that the others looked at.
    "deleteSession": Call("DELETE", _SESSION, _WRITE),
}


async def some_ids(tenant: Tenant) -> dict[str, str]:
    """Ids of a tenant's session with one finished run."""
    session = await tenant.session(name="secret name")
    receipt = await tenant.run(session, "echo: secret answer")
    entries = await tenant.entries(session)
    return {
        "session": session,
        "lane": "main",
        "entry": entries[0]["id"],
        "operation": receipt["id"],
    }
