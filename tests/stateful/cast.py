"""A provider and tools that do what the text of the newest scripted message says, word by word.

"p3: hold safe say" is a message with the script hold, safe, say: one word for each response to it.
What was tried before is remembered here, outside of every process that dies.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

from harness.codec import JsonValue
from harness.context import Context
from harness.entries import CustomEntry
from harness.messages import (
    AgentMessage,
    AgentToolResult,
    AssistantMessage,
    CustomMessage,
    DeferredHandle,
    UserMessage,
    plain_text,
    text_result,
)
from harness.models.registry import ModelRegistry
from harness.models.script import (
    At,
    Call,
    Defer,
    Gate,
    ScriptedRequest,
    ScriptedResponse,
    Text,
    calls,
    fail,
    say,
    steps,
    tokens,
)
from harness.models.scripted import ScriptedProvider, scripted_model
from harness.runtime.core import HarnessOptions
from harness.settings import CompactionSettings, ReplayPolicy, RetryPolicy, StreamOptions
from harness.testing.virtual_clock import VirtualClock
from harness.tools.protocol import FunctionTool, ToolCallRequest

TOOLS: dict[str, ReplayPolicy] = {
    "safe": "safe",
    "never": "never",
    "memo": "safe",
    "slow": "never",
    "deaf": "safe",
    "ends": "safe",
    "throws": "never",
}
BATCHES: dict[str, tuple[str, ...]] = {
    "pair": ("safe", "never"),
    "trio": ("slow", "memo", "gone"),
    "both": ("slow", "deaf"),
    "finish": ("ends", "ends"),
}
WORDS = (
    "say",
    "think",
    "flaky",
    "fail",
    "down",
    "over",
    "length",
    "hold",
    "defer",
    "gone",
    "cut",
    *TOOLS,
    *BATCHES,
)
_SCRIPT = re.compile(r"^([pq]\d+): (.*)$", re.MULTILINE)
BIG = scripted_model(context_window=3_000, max_tokens=200)
SMALL = scripted_model(context_window=1_200, max_tokens=100, model_id="small")
UNKNOWN = scripted_model(model_id="unknown")
MODELS = (BIG, SMALL, UNKNOWN)


class Cast:
    """The provider and the tools of one session, across all its processes."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.tries: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.replay_of: dict[str, ReplayPolicy] = {}
        self.held: dict[str, asyncio.Future[None]] = {}

    def options(self) -> HarnessOptions:
        """Options for a process; settings are those of the start."""
        # Any: these tools take no tool context.
        tools: tuple[FunctionTool[Any], ...] = tuple(
            FunctionTool(
                name, f"the {name} tool", {"type": "object"}, self._tool(name), replay=policy
            )
            for name, policy in TOOLS.items()
        )
        provider = ScriptedProvider(self._answer, self._clock)
        return HarnessOptions(
            models=ModelRegistry([(BIG, provider), (SMALL, provider)]),
            model=BIG,
            tools=tools,
            retry=RetryPolicy(max_retries=2, base_delay_ms=1_000),
            compaction=CompactionSettings(reserve_tokens=300, keep_recent_tokens=100),
            stream_options=StreamOptions(deferred=True),
            entry_projectors={"shown": _show},
        )

    # Gates

    async def hold(self, name: str) -> None:
        """Wait until the test releases this name."""
        waiting = self.held[name] = asyncio.get_running_loop().create_future()
        try:
            await waiting
        finally:
            if self.held.get(name) is waiting:
                del self.held[name]

    def release(self, number: int) -> str | None:
        """Let one waiter pass."""
        names = list(self.held)
        if not names:
            return None
        name = names[number % len(names)]
        self.held.pop(name).set_result(None)
        return name

    # The provider

    def _answer(self, request: ScriptedRequest) -> ScriptedResponse:
        if request.handle is not None:
            return self._poll(request.handle)
        key, word = self._word(request)
        self.tries[key] += 1
        return self._response(request, key, word)

    def _word(self, request: ScriptedRequest) -> tuple[str, str]:
        """The script's word for this request; summaries follow a script in their instructions."""
        messages = request.context.messages
        if request.context.system_prompt:
            text = "\n".join(plain_text(message.content) for message in messages)
            found = [m for m in _SCRIPT.finditer(text) if m.group(1).startswith("q")]
            name, script = (found[-1].group(1), found[-1].group(2)) if found else ("summary", "say")
            return f"summary {name}", script.split()[0] if script.split() else "say"
        answered = 0
        for message in reversed(messages):
            if isinstance(message, AssistantMessage):
                answered += 1
            elif isinstance(message, UserMessage):
                found = _SCRIPT.match(plain_text(message.content))
                if found is not None and found.group(1).startswith("p"):
                    words = found.group(2).split()
                    word = words[answered] if answered < len(words) else "say"
                    return f"{found.group(1)}.{answered}", word
        return f"none.{len(messages)}", "say"

    def _response(self, request: ScriptedRequest, key: str, word: str) -> ScriptedResponse:
        first = self.tries[key] == 1
        usage = tokens(60 * len(request.context.messages), 20)
        match word:
            case "think":
                return say(f"{key} thought", thinking="hm", usage=usage)
            case "flaky" if first:
                return fail("overloaded", kind="retryable", after="begun", usage=usage)
            case "down":
                return fail("down", kind="retryable", start=False)
            case "fail":
                return fail("no credit", kind="terminal", after="begun", usage=usage)
            case "over" if first:
                return fail("prompt is too long", kind="overflow")
            case "length":
                return say(f"{key} long", usage=tokens(10, 100), stop_reason="length")
            case "hold" if self.tries[key] <= 2:
                gate = _Held(self, f"stream {key}")
                return steps(Text("begun ", deltas=2), At(gate), Text("ended"), usage=usage)
            case "defer":
                return steps(Defer(_handle(f"{key} {self.tries[key]}")), usage=usage)
            case "cut":
                made = calls(Call("safe", id=f"{key}.0"), usage=tokens(10, 200))
                return ScriptedResponse(made.steps, usage=made.usage, stop_reason="length")
            case _:
                names = BATCHES.get(word, (word,) if word in (*TOOLS, "gone") else ())
                # A summary has no tools.
                if not names or request.context.system_prompt:
                    return say(f"{key} said", deltas=3, usage=usage)
                return calls(
                    *(Call(name, id=f"{key}.{index}") for index, name in enumerate(names)),
                    usage=usage,
                )

    def _poll(self, handle: DeferredHandle) -> ScriptedResponse:
        key = f"poll {handle.id}"
        self.tries[key] += 1
        match self.tries[key]:
            case 1:
                return steps(Defer(handle), usage=tokens(1, 0))
            case 2:
                return steps(
                    Text("part "),
                    At(_Held(self, f"stream {key}")),
                    Text("rest"),
                    usage=tokens(0, 9),
                )
            case _:
                return say(f"{handle.id} at last", usage=tokens(0, 9))

    # The tools

    def _tool(self, name: str) -> Any:
        async def execute(request: ToolCallRequest[None]) -> AgentToolResult:
            invocation = request.invocation.invocation_id
            self.replay_of[invocation] = TOOLS[name]
            self.runs[invocation] += 1
            return await self._work(name, request)

        return execute

    async def _work(self, name: str, request: ToolCallRequest[None]) -> AgentToolResult:
        call = request.tool_call_id
        self.tries[call] += 1
        match name:
            case "slow":
                request.on_update(text_result("1 of 2"), checkpoint=True)
                await _either(self.hold(f"tool {call}"), request.context)
                return text_result("2 of 2", details={"call": call})
            case "deaf":
                await self.hold(f"tool {call}")
                return text_result("deaf done")
            case "memo":
                return text_result(", ".join([await self._step(request, n) for n in ("a", "b")]))
            case "throws":
                raise ValueError("broken tool")
            case _:
                return text_result(f"{name} done", terminate=name == "ends")

    async def _step(self, request: ToolCallRequest[None], name: str) -> str:
        found = await request.invocation.get_memo(name)
        if found is None:
            done: JsonValue = f"{name} of try {self.tries[request.tool_call_id]}"
            await request.invocation.set_memo(name, done)
            if name == "a":
                await _either(self.hold(f"memo {request.tool_call_id}"), request.context)
            return str(done)
        return str(found)


class _Held(Gate):
    """A place in a stream where the provider waits for the test."""

    __slots__ = ("_cast", "_name")

    def __init__(self, cast: Cast, name: str) -> None:
        super().__init__()
        self._cast = cast
        self._name = name

    async def pass_through(self) -> None:
        """See `Gate.pass_through`."""
        await self._cast.hold(self._name)


def _handle(name: str) -> DeferredHandle:
    return DeferredHandle(id=name, provider="scripted", model_id="scripted", api="scripted")


async def _either(work: Any, context: Context) -> None:
    """Wait for the gate or for the abort signal."""
    signal = context.abort_signal
    assert signal is not None
    waits = [asyncio.ensure_future(work), asyncio.ensure_future(signal.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _show(entry: CustomEntry, context: Context) -> tuple[AgentMessage, ...]:
    return (CustomMessage(custom_type="shown", content=str(entry.data), timestamp=0),)
