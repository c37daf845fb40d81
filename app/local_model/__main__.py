"""`python -m app.local_model`: serve the local model until a signal, or until standard input ends."""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import threading

from app.local_model.front import bind, open_door
from app.local_model.server import MODEL_ID, LocalModelMissing, ServerOptions, start_server

_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def _options(arguments: list[str]) -> tuple[ServerOptions, bool]:
    defaults = ServerOptions()
    parser = argparse.ArgumentParser(
        prog="python -m app.local_model",
        description="A small language model on 127.0.0.1: OpenAI chat and responses, Anthropic messages.",
    )
    parser.add_argument("--port", type=int, default=defaults.port, help="0 takes a free one")
    parser.add_argument(
        "--context", type=int, default=defaults.context, help="tokens for each request, 256 to 8192"
    )
    parser.add_argument(
        "--slots", type=int, default=defaults.slots, help="requests answered at the same time"
    )
    parser.add_argument(
        "--threads", type=int, default=defaults.threads, help="threads that compute"
    )
    parser.add_argument(
        "--until-stdin-ends",
        action="store_true",
        help="also stop when standard input ends, so that the server cannot outlive its parent",
    )
    given = parser.parse_args(arguments)
    try:
        options = ServerOptions(given.port, given.context, given.slots, given.threads)
    except ValueError as error:
        parser.error(str(error))
    return options, bool(given.until_stdin_ends)


def _leave() -> None:
    # Nothing here is worth saving, and the native server's own end waits up to half a minute
    # for streams that are still open.
    os._exit(0)


def _leave_when_stdin_ends() -> None:
    while os.read(0, 4096):
        pass
    _leave()


async def _serve(door: socket.socket, upstream: str) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
    await open_door(door, upstream)
    host, port = door.getsockname()
    ready = {"url": f"http://{host}:{port}", "model": MODEL_ID, "pid": os.getpid()}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    await stopped.wait()
    _leave()


def main(arguments: list[str]) -> int:
    """Serve; one JSON line `{"url", "model", "pid"}` on standard output says that it is ready."""
    options, until_stdin_ends = _options(arguments)
    # Blocked before any other thread exists, so that llama.cpp's threads inherit it and a signal
    # that comes while the model loads waits for the main thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    if until_stdin_ends:
        threading.Thread(target=_leave_when_stdin_ends, daemon=True).start()
    try:
        door = bind(options.port)
        # The second one is the server itself: it serves as long as this reference lives.
        upstream, _server = start_server(options)
    except (OSError, RuntimeError, LocalModelMissing) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    asyncio.run(_serve(door, upstream))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
