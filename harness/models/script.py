"""The vocabulary of scripted responses: what a scripted model says, in steps, and helpers to write it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from harness.codec import JsonValue
from harness.messages import AssistantMessage, DeferredHandle, ErrorKind, StopReason
from harness.models.protocol import Model, ModelContext, RequestOptions
from harness.usage import Usage


class Gate:
    """Holds a stream until it is opened; a test waits for `reached` and then acts in the middle."""

    __slots__ = ("_open", "_reached")

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._reached = asyncio.Event()

    async def reached(self) -> None:
        """Return when a stream stands at this gate."""
        await self._reached.wait()

    def open(self) -> None:
        """Let streams pass, now and later."""
        self._open.set()

    async def pass_through(self) -> None:
        """Announce the arrival and wait until the gate is open."""
        self._reached.set()
        await self._open.wait()


@dataclass(frozen=True, slots=True)
class Text:
    """A text block, cut into `deltas` pieces of about equal length, with a pause before each."""

    text: str
    deltas: int = 1
    delay: float = 0.0
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """A thinking block."""

    text: str
    deltas: int = 1
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call whose JSON arguments arrive in `deltas` pieces. Without an id one is derived."""

    name: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    id: str | None = None
    deltas: int = 2
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Interleave:
    """Blocks that open together and whose deltas take turns."""

    blocks: tuple[Text | Thinking | Call, ...]


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait this many seconds of the injected clock."""

    seconds: float


@dataclass(frozen=True, slots=True)
class At:
    """Stop at a gate."""

    gate: Gate


@dataclass(frozen=True, slots=True)
class Fail:
    """End with a provider error. `kind` None leaves the classification to the message text."""

    message: str
    kind: ErrorKind | None = None
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise out of the stream, as a defective adapter does."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Defer:
    """End as a deferred response. `handle` None sends a deferred response without one."""

    handle: DeferredHandle | None


@dataclass(frozen=True, slots=True)
class Settle:
    """End with exactly this message, whatever was streamed before."""

    message: AssistantMessage


Step: TypeAlias = Text | Thinking | Call | Interleave | Delay | At | Fail | Raise | Defer | Settle


@dataclass(frozen=True, slots=True)
class ScriptedResponse:
    """One answer. Without `stop_reason` it is "toolUse" if there are calls, else "stop".

    `start` False leaves the start event out, as a request that fails before its first byte does.
    """

    steps: tuple[Step, ...]
    usage: Usage | None = None
    stop_reason: StopReason | None = None
    start: bool = True
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """A request as the script sees it. `index` counts the requests of this provider object from 0.

    `turn` counts assistant messages in the context: it depends on the conversation alone, so a
    script that chooses by it answers a repeated request in the same way in any process.
    """

    index: int
    model: Model
    context: ModelContext
    options: RequestOptions
    handle: DeferredHandle | None = None

    @property
    def turn(self) -> int:
        """How many responses the conversation holds so far."""
        return sum(isinstance(message, AssistantMessage) for message in self.context.messages)


Script: TypeAlias = Sequence[ScriptedResponse] | Callable[[ScriptedRequest], ScriptedResponse]


def tokens(input_tokens: int, output: int, *, cache_read: int = 0, cache_write: int = 0) -> Usage:
    """Usage without cost."""
    return Usage(
        input=input_tokens,
        output=output,
        cache_read=cache_read,
        cache_write=cache_write,
        total_tokens=input_tokens + output + cache_read + cache_write,
    )


def say(
    text: str,
    *,
    deltas: int = 1,
    delay: float = 0.0,
    thinking: str | None = None,
    usage: Usage | None = None,
    stop_reason: StopReason | None = None,
) -> ScriptedResponse:
    """A text answer in `deltas` pieces, `delay` seconds before each."""
    steps: list[Step] = []
    if thinking is not None:
        steps.append(Thinking(thinking))
    steps.append(Text(text, deltas=deltas, delay=delay))
    return ScriptedResponse(tuple(steps), usage=usage, stop_reason=stop_reason)


def call(
    name: str,
    arguments: Mapping[str, JsonValue] | None = None,
    *,
    id: str | None = None,
    text: str | None = None,
    usage: Usage | None = None,
) -> ScriptedResponse:
    """An answer that calls one tool, after some text if there is any."""
    step = Call(name, arguments if arguments is not None else {}, id=id)
    steps: tuple[Step, ...] = (step,) if text is None else (Text(text), step)
    return ScriptedResponse(steps, usage=usage)


def calls(*tools: Call, usage: Usage | None = None) -> ScriptedResponse:
    """An answer that calls several tools."""
    return ScriptedResponse(tools, usage=usage)


def fail(
    message: str,
    *,
    kind: ErrorKind | None = None,
    retry_after_ms: int | None = None,
    after: str | None = None,
    start: bool | None = None,
    usage: Usage | None = None,
) -> ScriptedResponse:
    """A failed request; `after` is text that arrived before it failed."""
    steps: tuple[Step, ...] = (Fail(message, kind, retry_after_ms),)
    if after is not None:
        steps = (Text(after), *steps)
    started = start if start is not None else after is not None
    return ScriptedResponse(steps, usage=usage, start=started)


def steps(*parts: Step, usage: Usage | None = None) -> ScriptedResponse:
    """An answer made of any steps."""
    return ScriptedResponse(parts, usage=usage)


def by_turn(*responses: ScriptedResponse) -> Callable[[ScriptedRequest], ScriptedResponse]:
    """A script whose answer depends only on how many responses the conversation holds."""

    def choose(request: ScriptedRequest) -> ScriptedResponse:
        if request.turn >= len(responses):
            return fail(f"the script has no answer for turn {request.turn}", kind="terminal")
        return responses[request.turn]

    return choose
