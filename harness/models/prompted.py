"""A script that reads its instructions from the prompt, for scripted models in real processes.

The last user message that starts with a known word decides; the responses since then count the
turns. So the answer depends on the conversation alone: a process that was killed and another that
goes on give the same one, and a message that steers in the middle changes nothing.

    echo: TEXT        answers TEXT
    think: TEXT       thinks TEXT, then answers "done thinking"
    tool: JSON        calls {"name", "arguments"} (or a list of them), then reports the results
    fail: JSON        fails with {"message", "kind"?, "retryAfterMs"?}
    script: JSON      a list of turns, each with "think", "text", "tools" and "fail" as wanted

Anything else is echoed. A scripts file maps a prompt's beginning to such a list of turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.clock import SystemClock
from harness.codec import JsonValue
from harness.errors import InvalidArgument
from harness.messages import (
    AssistantMessage,
    DeferredHandle,
    ErrorKind,
    ProviderMessage,
    ToolResultMessage,
    UserMessage,
    plain_text,
)
from harness.models.protocol import Model, ModelContext
from harness.models.script import (
    Call,
    Defer,
    Fail,
    ScriptedRequest,
    ScriptedResponse,
    Step,
    Text,
    Thinking,
    tokens,
)


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Common decoding rules of prompt instructions."""


class PromptedCall(_Wire, frozen=True):
    """One tool call."""

    name: str
    arguments: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    id: str | None = None


class PromptedFailure(_Wire, frozen=True):
    """One provider error."""

    message: str
    kind: ErrorKind | None = None
    retry_after_ms: int | None = None


class PromptedTurn(_Wire, frozen=True):
    """One response: thinking, text, tool calls and a failure, in this order. Delays in seconds.

    With `defer` the text is finished in the background, so many seconds after the request.
    """

    think: str | None = None
    text: str | None = None
    tools: tuple[PromptedCall, ...] = ()
    fail: PromptedFailure | None = None
    deltas: int | None = None
    delay: float | None = None
    defer: float | None = None


class _Background(_Wire, frozen=True):
    """What a deferred handle carries: the answer, and when it is ready (Unix ms)."""

    text: str
    ready_at: int


@dataclass(frozen=True, slots=True)
class _Pace:
    deltas: int | None
    delay: float


def prompted_script(
    *,
    delta_delay: float = 0.0,
    deltas: int | None = None,
    scripts: Mapping[str, tuple[PromptedTurn, ...]] | None = None,
    now: Callable[[], int] | None = None,
) -> Callable[[ScriptedRequest], ScriptedResponse]:
    """A script driven by the prompt. `delta_delay` seconds pass before each piece of a text.

    A text is cut into `deltas` pieces, or one per word. `scripts` are more turns by prompt prefix.
    `now` tells when a background response is ready (Unix ms).
    """
    pace = _Pace(deltas, delta_delay)
    known = dict(scripts) if scripts is not None else {}
    now_ms = now if now is not None else SystemClock().now_ms

    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.handle is not None:
            return _polled(request.handle, now_ms())
        prompt, turn = _instruction(request.context.messages, known)
        try:
            chosen = _turn(prompt, turn, request.context, known)
        except msgspec.MsgspecError as error:
            chosen = PromptedTurn(
                fail=PromptedFailure(message=f"unreadable instruction: {error}", kind="terminal")
            )
        if chosen.defer is not None:
            return _deferred(request.model, chosen, now_ms())
        steps = _steps(chosen, pace)
        words = sum(len(step.text.split()) for step in steps if isinstance(step, Text | Thinking))
        return ScriptedResponse(steps, usage=tokens(_input_words(request.context), words))

    return answer


def _deferred(model: Model, turn: PromptedTurn, now: int) -> ScriptedResponse:
    ready_at = now + round((turn.defer or 0) * 1_000)
    handle = DeferredHandle(
        id="prompted",
        provider=model.provider,
        model_id=model.model_id,
        api=model.api,
        data=msgspec.to_builtins(_Background(text=turn.text or "", ready_at=ready_at)),
    )
    return ScriptedResponse((Defer(handle),))


def _polled(handle: DeferredHandle, now: int) -> ScriptedResponse:
    background = msgspec.convert(handle.data, _Background)
    if now < background.ready_at:
        return ScriptedResponse((Defer(handle),))
    return ScriptedResponse((Text(background.text),))


def load_scripts(path: Path) -> dict[str, tuple[PromptedTurn, ...]]:
    """Scripts by prompt prefix from a JSON file; raises `InvalidArgument` when it is unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[PromptedTurn, ...]])
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidArgument(f"cannot read the scripts file {path}: {error}") from error


_WORDS = ("echo:", "think:", "tool:", "fail:", "script:")


def _instruction(
    messages: tuple[ProviderMessage, ...], known: Mapping[str, tuple[PromptedTurn, ...]]
) -> tuple[str, int]:
    answers = 0
    last: tuple[str, int] | None = None
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            answers += 1
        elif isinstance(message, UserMessage):
            text = plain_text(message.content)
            if text.startswith((*_WORDS, *known)):
                return text, answers
            last = last or (text, 0)
    return last or ("", 0)


def _turn(
    prompt: str,
    turn: int,
    context: ModelContext,
    known: Mapping[str, tuple[PromptedTurn, ...]],
) -> PromptedTurn:
    for prefix, turns in known.items():
        if prompt.startswith(prefix):
            return _nth(turns, turn)
    word, _, rest = prompt.partition(":")
    rest = rest.strip()
    match word:
        case "echo":
            return PromptedTurn(text=rest)
        case "think":
            return PromptedTurn(think=rest, text="done thinking")
        case "tool":
            calls = msgspec.json.decode(rest, type=PromptedCall | tuple[PromptedCall, ...])
            if turn > 0:
                return PromptedTurn(text=f"the tools said: {_results(context)}")
            return PromptedTurn(tools=calls if isinstance(calls, tuple) else (calls,))
        case "fail":
            return PromptedTurn(fail=msgspec.json.decode(rest, type=PromptedFailure))
        case "script":
            return _nth(msgspec.json.decode(rest, type=tuple[PromptedTurn, ...]), turn)
        case _:
            return PromptedTurn(text=f"you said: {prompt}")


def _nth(turns: tuple[PromptedTurn, ...], turn: int) -> PromptedTurn:
    return turns[turn] if turn < len(turns) else PromptedTurn(text="the script is over")


def _steps(turn: PromptedTurn, pace: _Pace) -> tuple[Step, ...]:
    delay = turn.delay if turn.delay is not None else pace.delay
    steps: list[Step] = []
    if turn.think is not None:
        steps.append(Thinking(turn.think, deltas=max(1, len(turn.think.split()))))
    if turn.text is not None:
        wanted = turn.deltas or pace.deltas or max(1, len(turn.text.split()))
        steps.append(Text(turn.text, deltas=wanted, delay=delay))
    steps.extend(Call(tool.name, tool.arguments, id=tool.id, delay=delay) for tool in turn.tools)
    if turn.fail is not None:
        steps.append(Fail(turn.fail.message, turn.fail.kind, turn.fail.retry_after_ms))
    return tuple(steps)


def _results(context: ModelContext) -> str:
    texts: list[str] = []
    for message in reversed(context.messages):
        if isinstance(message, ToolResultMessage):
            texts.append(plain_text(message.content))
        elif isinstance(message, AssistantMessage):
            break
    return "; ".join(reversed(texts))


def _input_words(context: ModelContext) -> int:
    return len(context.system_prompt.split()) + sum(
        len(plain_text(message.content).split()) for message in context.messages
    )
