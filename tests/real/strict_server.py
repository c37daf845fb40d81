"""A real HTTP server on loopback that refuses what providers refuse, and answers all else with "ok"."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from harness.models.pydantic_ai_client import Api
from tests.models.fault_server import FaultServer, Reply, Request, serving
from tests.models.wires import anthropic, chat_text, message_item, responses_stream, text_block
from tests.real.strict_rules import (
    Refused,
    check_anthropic,
    check_chat,
    check_responses,
    check_template,
)

Strictness: TypeAlias = Literal["openai-chat", "chat-template", "openai-responses", "anthropic"]


@dataclass(frozen=True)
class Wire:
    """A wire under one provider's rules: where its requests go and what is refused there."""

    api: Api
    base: str
    path: str
    check: Callable[[Mapping[str, Any]], None]
    accepted: Reply


_CHAT_OK = chat_text("ok")
WIRES: dict[Strictness, Wire] = {
    "openai-chat": Wire("openai-chat", "/v1", "/chat/completions", check_chat, _CHAT_OK),
    "chat-template": Wire("openai-chat", "/strict", "/chat/completions", check_template, _CHAT_OK),
    "openai-responses": Wire(
        "openai-responses",
        "/v1",
        "/responses",
        check_responses,
        responses_stream(message_item("ok")),
    ),
    "anthropic": Wire(
        "anthropic",
        "/v1",
        "/messages",
        check_anthropic,
        Reply(events=anthropic(*text_block(0, "ok"))),
    ),
}


class StrictServer(FaultServer):
    """Checks each request by the rules of its path. `refusals` are the reasons given."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: list[str] = []

    def reply_to(self, request: Request) -> Reply:
        """Refuse as the provider would, or answer."""
        path = request.path.partition("?")[0]
        for wire in WIRES.values():
            if path == wire.base + wire.path:
                try:
                    wire.check(request.body)
                except Refused as refused:
                    self.refusals.append(str(refused))
                    error = {"type": "invalid_request_error", "message": str(refused)}
                    return Reply(400, body={"type": "error", "error": error})
                return wire.accepted
        return Reply(404, body={"error": {"message": f"no route {path}"}})


@asynccontextmanager
async def strict_server() -> AsyncIterator[StrictServer]:
    """A strict server for the length of the block."""
    server = StrictServer()
    async with serving(server):
        yield server
