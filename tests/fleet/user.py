"""A client that keeps its word: it repeats a request until somebody answers, with the same id."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from harness.environment import Environment

ATTEMPT_SECONDS = 5.0


class Unanswered(Exception):
    """Nobody answered for minutes: the fleet is down."""


class User:
    """Speaks for one tenant through whichever API process is alive."""

    def __init__(self, key: str, urls: Callable[[], list[str]]) -> None:
        self._urls = urls
        self._turn = 0
        self._environment = Environment.system()
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"}, timeout=ATTEMPT_SECONDS
        )

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

    def new_id(self) -> str:
        """An id for an operation, kept over repetitions."""
        return self._environment.ids.next()

    async def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The first answer that is not a failure of the connection or of a server going down."""
        for _ in range(4_000):
            urls = self._urls()
            if urls:
                self._turn += 1
                try:
                    answer = await self._client.request(
                        method, urls[self._turn % len(urls)] + path, **more
                    )
                except httpx.TransportError:
                    pass
                else:
                    if answer.status_code < 500:
                        return answer
            await asyncio.sleep(0.1)
        raise Unanswered(f"{method} {path}")

    async def session(self) -> str:
        """A new session."""
        key = {"Idempotency-Key": self.new_id()}
        answer = await self.request("POST", "/v1/sessions", json={}, headers=key)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def lane(self, session: str, name: str) -> None:
        """Another lane of a session, which begins at the root."""
        answer = await self.request(
            "POST",
            f"/v1/sessions/{session}/lanes",
            json={"name": name, "at": None},
            headers={"Idempotency-Key": self.new_id()},
        )
        assert answer.status_code == 201, answer.text

    async def steer(self, session: str, lane: str, text: str) -> tuple[int, str]:
        """Say something into an open run, once; the answer's status and, for a problem, its code."""
        key = {"Idempotency-Key": self.new_id()}
        while True:
            answer = await self.request(
                "POST",
                f"/v1/sessions/{session}/lanes/{lane}/steer",
                json={"message": text},
                headers=key,
            )
            code = str(answer.json().get("code", ""))
            if code != "RequestInProgress":
                return answer.status_code, code
            await asyncio.sleep(0.1)

    async def submit(
        self, session: str, prompt: str, operation_id: str, lane: str = "main"
    ) -> bool:
        """Submit a prompt; True once it is accepted, False while the lane is busy with another."""
        answer = await self.request(
            "POST",
            f"/v1/sessions/{session}/lanes/{lane}/operations",
            json={"kind": "prompt", "prompt": prompt, "operationId": operation_id},
        )
        if answer.status_code in (200, 202):
            assert answer.json()["operationId"] == operation_id
            return True
        assert answer.status_code == 409, answer.text
        return False

    async def receipt(self, operation_id: str) -> dict[str, Any]:
        """The receipt once the operation is over."""
        while True:
            answer = await self.request("GET", f"/v1/operations/{operation_id}?wait=3")
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            if found["status"] == "done":
                return found

    async def entries(self, session: str) -> list[dict[str, Any]]:
        """All entries of a session, oldest first."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            answer = await self.request(
                "GET", f"/v1/sessions/{session}/entries?order=asc&limit=500{cursor}"
            )
            assert answer.status_code == 200, answer.text
            page = answer.json()
            found += page["data"]
            if page.get("nextCursor") is None:
                return found
            cursor = f"&cursor={page['nextCursor']}"


def tool_prompt(name: str, seconds: float, tag: str) -> str:
    """A prompt that makes the scripted model call one tool and report its result."""
    arguments = {"seconds": seconds, "tag": tag}
    return f"tool: {json.dumps({'name': name, 'arguments': arguments})}"


def judge_transcript(entries: list[dict[str, Any]], *, given_up: int = 0) -> None:
    """Every call has exactly one result, after it; no entry appears twice; parents come first.

    Of `given_up` operations, which were ended from outside, a call may have none.
    """
    seen: set[str] = set()
    calls: Counter[str] = Counter()
    results: Counter[str] = Counter()
    for entry in entries:
        assert entry["id"] not in seen
        assert entry["parentId"] is None or entry["parentId"] in seen
        seen.add(entry["id"])
        message = entry.get("message")
        if message is None:
            continue
        if message["role"] == "assistant" and message["stopReason"] in ("toolUse", "length"):
            calls.update(
                f"{entry['id']}/{part['id']}"
                for part in message["content"]
                if part["type"] == "toolCall"
            )
        if message["role"] == "toolResult":
            results[message["toolCallId"]] += 1
    unanswered = sum(calls.values()) - sum(results.values())
    assert 0 <= unanswered <= given_up, (calls, results)
