"""When the scripted models of this process are asked, for benchmarks that measure up to there."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from harness.models.scripted import ScriptedProvider


class Requests:
    """Listens from its making until `close`."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[float]] = {}
        answer = self._answer = ScriptedProvider._answer
        waiting_for = self._waiting

        def asked(self: ScriptedProvider, request: Any) -> Any:
            waiting = waiting_for.pop(request.options.session_id, None)
            if waiting is not None:
                waiting.set_result(time.perf_counter())
            return answer(self, request)

        ScriptedProvider._answer = asked

    def next(self, session: str) -> asyncio.Future[float]:
        """The instant of the session's next request."""
        future = self._waiting[session] = asyncio.get_running_loop().create_future()
        return future

    def close(self) -> None:
        """Listen no more."""
        ScriptedProvider._answer = self._answer
