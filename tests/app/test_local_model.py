"""The local model server: a real process, real HTTP, the three wires, and how it ends."""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.local_model import MODEL_ID, LocalModelFailed, LocalModelMissing, local_model_server
from app.local_model.front import asking_to_close
from app.local_model.server import ServerOptions

# One server for the file, where the runner can keep a file on one worker.
pytestmark = pytest.mark.xdist_group("local_model")

COUNT_WORDS = {
    "name": "count_words",
    "description": "Count the words of a text.",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    },
}
SLOW_REPORT = {
    "name": "slow_report",
    "description": "Write a report, slowly.",
    "parameters": {
        "type": "object",
        "properties": {"topic": {"type": "string"}, "seconds": {"type": "integer"}},
        "required": ["topic", "seconds"],
    },
}
CHAT_TOOLS = [{"type": "function", "function": tool} for tool in (COUNT_WORDS, SLOW_REPORT)]
ASK = 'Use the slow_report tool with topic "harbour lights" and seconds 5.'
ASKED = {"topic": "harbour lights", "seconds": 5}
RESULT = "Report on harbour lights: finished after 5 seconds."
STORY = "Tell me a short story about a lighthouse."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model_url() -> AsyncIterator[str]:
    async with local_model_server(context=1024) as url:
        yield url


@pytest_asyncio.fixture
async def http(model_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=model_url, timeout=60) as client:
        yield client


async def events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    """The decoded `data:` lines of a streamed answer, without the closing `[DONE]`."""
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        return [
            json.loads(line.removeprefix("data: "))
            async for line in response.aiter_lines()
            if line.startswith("data: ") and line != "data: [DONE]"
        ]


async def chat(client: httpx.AsyncClient, messages: list[Any]) -> dict[str, Any]:
    response = await client.post(
        "/v1/chat/completions", json={"messages": messages, "tools": CHAT_TOOLS}
    )
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", [])
    ]


async def test_is_healthy_and_names_its_model(http: httpx.AsyncClient):
    assert (await http.get("/health")).json() == {"status": "ok"}
    assert [model["id"] for model in (await http.get("/v1/models")).json()["data"]] == [MODEL_ID]


async def test_streams_text_and_calls_no_tool_that_nobody_asked_for(http: httpx.AsyncClient):
    body = {
        "messages": [{"role": "user", "content": STORY}],
        "tools": CHAT_TOOLS,
        "max_tokens": 48,
        "stream_options": {"include_usage": True},
    }
    chunks = await events(http, "/v1/chat/completions", body)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert len([delta for delta in deltas if delta.get("content")]) >= 20
    assert not any("tool_calls" in delta for delta in deltas)
    assert chunks[-1]["usage"]["completion_tokens"] == 48


@pytest.mark.parametrize(
    ("prompt", "name", "arguments"),
    [
        (ASK, "slow_report", ASKED),
        (
            'Use the count_words tool with text "a worker died, another took over".',
            "count_words",
            {"text": "a worker died, another took over"},
        ),
    ],
)
async def test_chat_wire_calls_the_named_tool_then_answers_in_words(
    http: httpx.AsyncClient, prompt: str, name: str, arguments: dict[str, Any]
):
    messages: list[Any] = [{"role": "user", "content": prompt}]
    message = await chat(http, messages)
    assert calls(message) == [(name, arguments)]
    call_id = message["tool_calls"][0]["id"]
    messages += [message, {"role": "tool", "tool_call_id": call_id, "content": RESULT}]
    answer = await chat(http, messages)
    assert calls(answer) == []
    assert answer["content"].startswith(f"The {name} tool answered: ")


async def test_chat_wire_streams_a_call_in_pieces(http: httpx.AsyncClient):
    body = {"messages": [{"role": "user", "content": ASK}], "tools": CHAT_TOOLS}
    choices = [
        choice
        for chunk in await events(http, "/v1/chat/completions", body)
        for choice in chunk["choices"]
    ]
    pieces = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert pieces[0]["function"]["name"] == "slow_report"
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == ASKED
    assert choices[-1]["finish_reason"] == "tool_calls"


async def test_calls_a_tool_late_in_a_conversation_without_tools(http: httpx.AsyncClient):
    messages = [
        {"role": "system", "content": "You are a careful assistant."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I help you today?"},
        {"role": "user", "content": "Thank you!"},
        {"role": "assistant", "content": "You are welcome."},
        {"role": "user", "content": ASK},
    ]
    assert calls(await chat(http, messages)) == [("slow_report", ASKED)]


async def test_responses_wire_round_trip(http: httpx.AsyncClient):
    tools = [{"type": "function", **tool} for tool in (COUNT_WORDS, SLOW_REPORT)]
    ask: list[Any] = [{"role": "user", "content": ASK}]
    stream = await events(http, "/v1/responses", {"input": ask, "tools": tools})
    assert stream[-1]["type"] == "response.completed"
    (call,) = stream[-1]["response"]["output"]
    assert (call["type"], call["name"]) == ("function_call", "slow_report")
    assert json.loads(call["arguments"]) == ASKED
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    stream = await events(http, "/v1/responses", {"input": [*ask, call, result], "tools": tools})
    text = "".join(e["delta"] for e in stream if e["type"] == "response.output_text.delta")
    assert text == f"The slow_report tool answered: {RESULT}"
    assert {output["type"] for output in stream[-1]["response"]["output"]} == {"message"}


async def test_messages_wire_round_trip(http: httpx.AsyncClient):
    tools = [
        {
            "name": tool["name"],
            "description": tool["description"],
            "input_schema": tool["parameters"],
        }
        for tool in (COUNT_WORDS, SLOW_REPORT)
    ]
    body: dict[str, Any] = {"max_tokens": 100, "tools": tools}
    ask = {"role": "user", "content": ASK}
    stream = await events(http, "/v1/messages", {**body, "messages": [ask]})
    (block,) = [e["content_block"] for e in stream if e["type"] == "content_block_start"]
    assert (block["type"], block["name"]) == ("tool_use", "slow_report")
    pieces = [e["delta"]["partial_json"] for e in stream if e["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == ASKED
    (end,) = [e for e in stream if e["type"] == "message_delta"]
    assert end["delta"]["stop_reason"] == "tool_use"
    use = {"type": "tool_use", "id": block["id"], "name": "slow_report", "input": ASKED}
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": RESULT}
    said = [
        ask,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    stream = await events(http, "/v1/messages", {**body, "messages": said})
    text = "".join(e["delta"]["text"] for e in stream if e["type"] == "content_block_delta")
    assert text == f"The slow_report tool answered: {RESULT}"


async def test_more_requests_than_slots_all_get_their_own_answer(http: httpx.AsyncClient):
    async def ask(number: int) -> None:
        prompt = f'Use the slow_report tool with topic "tides" and seconds {number}.'
        message = await chat(http, [{"role": "user", "content": prompt}])
        assert calls(message) == [("slow_report", {"topic": "tides", "seconds": number})]

    await asyncio.gather(*(ask(number) for number in range(3, 8)))


async def test_a_pooling_client_can_send_the_next_request_at_once(http: httpx.AsyncClient):
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    for _ in range(20):
        assert await events(http, "/v1/chat/completions", body)


def test_the_front_replaces_what_a_request_says_about_its_connection():
    head = b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nconnection: keep-alive\r\nX-A: b\r\n\r\n"
    assert asking_to_close(head) == (
        b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nX-A: b\r\nConnection: close\r\n\r\n"
    )


async def test_a_client_that_leaves_frees_its_slot():
    async with (
        local_model_server(context=8192, slots=1) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        ask = [{"role": "user", "content": STORY}]
        endless = {"messages": ask, "max_tokens": 8000, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=endless) as response:
            assert (await anext(response.aiter_lines())).startswith("data: ")
        # Of the only slot: left to itself it would be busy far longer than this client waits.
        body = {"messages": ask, "max_tokens": 1}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_a_request_beyond_the_context_is_refused_by_name(http: httpx.AsyncClient):
    long = {"messages": [{"role": "user", "content": "word " * 1200}]}
    response = await http.post("/v1/chat/completions", json=long)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "exceed_context_size_error"
    assert response.json()["error"]["n_ctx"] == 1024


class Started:
    """The child processes that the test started."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.one = asyncio.Event()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    seen = Started()
    start = asyncio.create_subprocess_exec

    async def spy(*arguments: Any, **options: Any) -> Process:
        seen.processes.append(await start(*arguments, **options))
        seen.one.set()
        return seen.processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
    return seen


async def test_ends_with_its_block_even_with_an_open_stream(started: Started):
    told: list[str] = []
    async with httpx.AsyncClient(timeout=60) as client:
        body = {"messages": [{"role": "user", "content": STORY}], "stream": True, "max_tokens": 500}
        async with (
            contextlib.AsyncExitStack() as streams,
            local_model_server(context=1024, slots=1, progress=told.append) as url,
        ):
            stream = client.stream("POST", f"{url}/v1/chat/completions", json=body)
            response = await streams.enter_async_context(stream)
            assert response.status_code == 200
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/health")
    assert [process.returncode for process in started.processes] == [0]
    assert told[0].startswith("loading SmolLM2")
    assert url in told[-1]


async def test_cancelling_the_start_leaves_no_process(started: Started):
    async def serve() -> None:
        async with local_model_server(context=256, slots=1):
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await started.one.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert started.processes[0].returncode is not None


async def test_a_start_that_takes_too_long_fails_and_leaves_no_process(started: Started):
    with pytest.raises(LocalModelFailed, match=r"not ready after 0\.01 seconds"):
        async with local_model_server(context=256, slots=1, start_seconds=0.01):
            pass
    assert started.processes[0].returncode is not None


async def test_a_taken_port_is_a_failure_with_the_reason(started: Started):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(LocalModelFailed, match="in use"),
    ):
        async with local_model_server(context=256, slots=1, port=taken.getsockname()[1]):
            pass
    assert started.processes[0].returncode == 1


async def answers(client: httpx.AsyncClient, url: str) -> bool:
    """Whether anything listens: a server on its way out may cut a connection, which is not it yet."""
    try:
        await client.get(f"{url}/health")
    except httpx.ConnectError:
        return False
    except (httpx.ReadError, httpx.RemoteProtocolError):
        return True
    return True


async def test_dies_with_a_parent_that_was_killed():
    parent_code = (
        "import asyncio\n"
        "from app.local_model import local_model_server\n"
        "async def main():\n"
        "    async with local_model_server(context=256, slots=1) as url:\n"
        "        print(url, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", parent_code, stdout=PIPE)
    assert parent.stdout is not None
    url = (await parent.stdout.readline()).decode().strip()
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{url}/health")).status_code == 200
        parent.kill()
        await parent.wait()
        async with asyncio.timeout(30):
            # Another process's end: there is nothing here that could be awaited instead.
            while await answers(client, url):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_says_when_it_is_ready_and_obeys_a_signal(number: signal.Signals):
    command = [sys.executable, "-m", "app.local_model", "--context", "256", "--slots", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["model"] == MODEL_ID
        assert httpx.get(f"{ready['url']}/health").status_code == 200
        os.kill(ready["pid"], number)
        assert process.wait(timeout=30) == 0


async def test_without_the_extra_the_message_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "xllamacpp" else find(name)
    )
    with pytest.raises(LocalModelMissing, match=r"laneway\[local-model\]"):
        async with local_model_server():
            pass


@pytest.mark.parametrize(
    "wrong", [{"port": 65536}, {"context": 255}, {"context": 8193}, {"slots": 0}, {"threads": 0}]
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, int]):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be"):
        ServerOptions(**wrong)
