"""A thousand event streams on one API process, of fifty lanes that are at work: what they cost it."""

from __future__ import annotations

import asyncio
import json
import resource
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tests.bench.backends import database
from tests.bench.measure import Measure
from tests.fleet.processes import FleetOfProcesses
from tests.fleet.user import User

WATCHERS = 1_000
LANES = 50
_WORDS = 60
_MODELS = json.dumps(
    [{"provider": "scripted", "modelId": "prompted", "scripted": {"deltaDelay": 0.2}}]
)


class _Watcher:
    """One client, which reads what comes and counts it."""

    def __init__(self) -> None:
        self.events = 0
        self.snapshots = 0
        self.ends = 0

    async def follow(self, url: str, key: str, session: str) -> None:
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(
            f"GET /v1/sessions/{session}/lanes/main/events HTTP/1.1\r\nHost: {place.netloc}\r\n"
            f"Authorization: Bearer {key}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        try:
            while line := await reader.readline():
                if line.startswith(b"event: "):
                    name = line[7:].strip()
                    self.events += 1
                    self.snapshots += name == b"snapshot"
                    self.ends += name == b"run_end"
        finally:
            writer.close()


async def _until(watchers: list[_Watcher], seen: str) -> None:
    while not all(getattr(watcher, seen) for watcher in watchers):  # noqa: ASYNC110 -- other tasks count
        await asyncio.sleep(0.05)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _measure(fleet: FleetOfProcesses, key: str, user: User) -> list[Measure]:
    await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 1))
    (api,), (worker,) = fleet.of("api"), fleet.of("worker")
    served, driven = psutil.Process(api.process.pid), psutil.Process(worker.process.pid)
    sessions = [await user.session() for _ in range(LANES)]
    at_rest = served.memory_info().rss
    watchers = [_Watcher() for _ in range(WATCHERS)]
    following = [
        asyncio.ensure_future(watcher.follow(api.url, key, sessions[number % LANES]))
        for number, watcher in enumerate(watchers)
    ]
    await _until(watchers, "snapshots")
    connected = served.memory_info().rss
    before, before_driven, begun = _cpu(served), _cpu(driven), time.perf_counter()
    text = "echo: " + " ".join(f"word{number}" for number in range(_WORDS))
    for session in sessions:
        await user.submit(session, text, user.new_id())
    await _until(watchers, "ends")
    seconds = time.perf_counter() - begun
    cpu, cpu_driven = _cpu(served) - before, _cpu(driven) - before_driven
    busiest = served.memory_info().rss
    events = sum(watcher.events for watcher in watchers)
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    megabyte = 1024 * 1024
    return [
        Measure("streams open on one API process", float(WATCHERS), "streams"),
        Measure("memory of that process at rest", at_rest / megabyte, "MB"),
        Measure("memory with the streams open", connected / megabyte, "MB"),
        Measure("memory at the end of the work", busiest / megabyte, "MB"),
        Measure("memory for each stream", (busiest - at_rest) / WATCHERS / 1024, "KB", 256.0, True),
        Measure("events sent", float(events), "events"),
        Measure("events sent in a second", events / seconds, "events"),
        Measure("processor of the API for an event", cpu / events * 1e6, "us"),
        Measure("processor of the API, of one core", cpu / seconds, "share"),
        Measure("processor of the worker, of one core", cpu_driven / seconds, "share"),
    ]


async def run() -> list[dict[str, object]]:
    """With processes of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8 * WATCHERS)), hard))
    with tempfile.TemporaryDirectory() as folder:
        async with database() as place:
            fleet = FleetOfProcesses(place, Path(folder), LANEWAY_MODELS=_MODELS)
            key = await fleet.tenant()
            user = User(key, lambda: [api.url for api in fleet.of("api")])
            try:
                return [row.as_json() for row in await _measure(fleet, key, user)]
            finally:
                await user.close()
                await fleet.stop()
