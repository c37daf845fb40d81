"""Time and timers as an injected dependency: nothing else in the harness reads the wall clock."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time in Unix milliseconds, a monotonic reading for durations, and sleep."""

    def now_ms(self) -> int:
        """Unix milliseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`; cancellation ends it early."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
