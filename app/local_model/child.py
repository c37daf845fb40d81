"""The model server as a child process that ends with the block that started it, or with its parent."""

import asyncio
import contextlib
import json
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator, Callable

from app.local_model.server import ServerOptions, require_local_model

_log = logging.getLogger(__name__)
_STOP_SECONDS = 5.0
_LAST_LINES = 30


class LocalModelFailed(Exception):
    """The model server did not start, or stopped while starting; the message ends with its last words."""


def _silent(_: str) -> None:
    return None


@contextlib.asynccontextmanager
async def local_model_server(
    *,
    context: int = 2048,
    port: int = 0,
    slots: int = 4,
    threads: int = 1,
    progress: Callable[[str], None] = _silent,
    start_seconds: float = 60.0,
) -> AsyncGenerator[str, None]:
    """Run the model server while the block runs; gives its base URL, like `http://127.0.0.1:40123`.

    OpenAI clients add `/v1` to the URL, Anthropic clients take it as it is. `context` is the number
    of tokens of one request and its answer, `slots` the number of requests answered at a time (see
    `ServerOptions`), `progress` is told in a few words what is being waited for. At the end of the
    block the server is stopped at once and open streams are cut; should this process die, the
    server ends too.

    Raises `LocalModelMissing` when the extra is not installed, `LocalModelFailed` when the server
    does not answer within `start_seconds`, and `ValueError` for numbers out of range.
    """
    options = ServerOptions(port=port, context=context, slots=slots, threads=threads)
    weights = require_local_model()
    progress(f"loading {weights.stem} ({weights.stat().st_size // 1_000_000} MB)")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "app.local_model",
        f"--port={options.port}",
        f"--context={options.context}",
        f"--slots={options.slots}",
        f"--threads={options.threads}",
        "--until-stdin-ends",
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    last_words: deque[str] = deque(maxlen=_LAST_LINES)
    listening = asyncio.create_task(_listen(process, last_words))
    try:
        url = await _ready(process, last_words, listening, start_seconds)
        progress(f"model server ready at {url}")
        yield url
    finally:
        await _stop(process, listening)


async def _ready(
    process: Process, last_words: deque[str], listening: asyncio.Task[None], seconds: float
) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            line = await process.stdout.readline()
            if not line:
                await listening
                # Told to stop while it ends, it may lose its status: the signal looks for it too.
                await process.wait()
    except TimeoutError:
        reason = f"was not ready after {seconds:g} seconds"
    else:
        if line:
            return str(json.loads(line)["url"])
        reason = "stopped while starting"
    raise LocalModelFailed("\n".join([f"The local model server {reason}.", *last_words]))


async def _listen(process: Process, last_words: deque[str]) -> None:
    # Read for as long as it writes: a full pipe would stop the server.
    assert process.stderr is not None
    async for line in process.stderr:
        text = line.decode(errors="replace").rstrip()
        last_words.append(text)
        _log.info("model server: %s", text)


async def _stop(process: Process, listening: asyncio.Task[None]) -> None:
    # The signal first and without waiting: a cancelled caller must not leave the server behind.
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await listening
