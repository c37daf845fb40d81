"""A model server that counts: what it was asked, what it answered in full, what was cut off.

It speaks the OpenAI chat wire over real HTTP and outlives every process of the fleet, so its count is
an account of its own to hold the ledger against.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

MODEL_ID = "counted"

# Where a held stream stands still: after enough to be worth keeping, and past the few events of a tool
# call or of a word.
HELD_AT = 60

Fate = Literal["under way", "answered", "cut"]


@dataclass(slots=True)
class Counted:
    """One request: the prompt it answers, the tokens it was billed, what became of it, and when it came
    (seconds, by `time.perf_counter`)."""

    id: str
    prompt: str
    input: int
    output: int
    fate: Fate = "under way"
    at: float = 0.0


class ModelServer:
    """Answers by what the conversation says: `echo: TEXT`, `tool: JSON`, and a word for all else."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._port = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.counted: dict[str, Counted] = {}

    def configuration(self) -> str:
        """What a process is to have as `LANEWAY_MODELS`."""
        entry = {
            "provider": "counting",
            "modelId": MODEL_ID,
            "api": "openai-chat",
            "baseUrl": f"http://127.0.0.1:{self._port}/v1",
            "contextWindow": 1_000_000,
            "cost": {"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0},
        }
        return json.dumps([entry])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ModelServer]:
        """Serve while the block runs."""
        serving: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            serving.add(task)
            task.add_done_callback(serving.discard)
            with contextlib.suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._port = int(server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            for task in list(serving):
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """No stream gets past its first events while the block runs, however long that takes."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.partition(b":")[2])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            )
            asked = json.loads(await reader.readexactly(length))
            await self._answer(asked["messages"], reader, writer)
        finally:
            writer.close()

    async def _answer(
        self,
        messages: Sequence[dict[str, Any]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        prompt, turn = _instruction(messages)
        pieces = _pieces(prompt, turn)
        number = len(self.counted) + 1
        # The input is the request's number: every response has an amount of its own.
        counted = Counted(
            f"chatcmpl-{number}", prompt, 1_000 + number, len(pieces), at=time.perf_counter()
        )
        self.counted[counted.id] = counted
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            for place, event in enumerate(_events(counted, pieces)):
                if place == HELD_AT:
                    await self._let_go(leaving)
                data = f"data: {json.dumps(event)}\n\n".encode()
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                await writer.drain()
                # A client that is still there sends nothing while it reads.
                done, _ = await asyncio.wait((leaving,), timeout=self._pause)
                if done:
                    raise ConnectionResetError
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            await writer.drain()
            counted.fate = "answered"
        except BaseException:
            counted.fate = "cut"
            raise
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    async def _let_go(self, leaving: asyncio.Future[bytes]) -> None:
        flowing = asyncio.ensure_future(self._flowing.wait())
        try:
            await asyncio.wait((leaving, flowing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            flowing.cancel()
        if leaving.done():
            raise ConnectionResetError


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts)


def _instruction(messages: Sequence[dict[str, Any]]) -> tuple[str, int]:
    """The newest instruction and how many responses there were since."""
    answers = 0
    for message in reversed(messages):
        if message["role"] == "assistant":
            answers += 1
        elif message["role"] == "user":
            # What was said into the run before any answer is in the same message, further down.
            text = _text(message["content"]).partition("\n")[0]
            if text.startswith(("echo:", "tool:")):
                return text, answers
    return "", answers


def _pieces(prompt: str, turn: int) -> list[dict[str, Any]]:
    word, _, rest = prompt.partition(":")
    if word == "echo" and turn == 0:
        return [{"content": f"{piece} "} for piece in rest.split()]
    if word == "tool" and turn == 0:
        call = json.loads(rest)
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        return [
            {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
        ]
    return [{"content": "noted"}]


def _events(counted: Counted, pieces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    finish = "tool_calls" if any("tool_calls" in piece for piece in pieces) else "stop"
    usage = {
        "prompt_tokens": counted.input,
        "completion_tokens": counted.output,
        "total_tokens": counted.input + counted.output,
    }
    return [
        _chunk(counted, {"role": "assistant", "content": ""}),
        *(_chunk(counted, piece) for piece in pieces),
        _chunk(counted, {}, finish),
        {**_chunk(counted, None), "usage": usage},
    ]


def _chunk(
    counted: Counted, delta: dict[str, Any] | None, finish: str | None = None
) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": counted.id,
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL_ID,
        "choices": choices,
    }
