"""Invocation context: one call's cancellation and telemetry lineage, passed explicitly (§0.2, §5.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.telemetry import NOOP_TELEMETRY, TelemetryContext


class AbortSignal:
    """A one-way cooperative cancellation flag that can be awaited or listened to."""

    __slots__ = ("_aborted", "_listeners", "_waiters")

    def __init__(self) -> None:
        self._aborted = False
        self._listeners: list[Callable[[], None]] = []
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def aborted(self) -> bool:
        """Whether the signal was pulled."""
        return self._aborted

    def on_abort(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` once when the signal is pulled (now, if it was). Returns the remover."""
        if self._aborted:
            listener()
            return _nothing
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    async def wait(self) -> None:
        """Return when the signal is pulled."""
        if self._aborted:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _pull(self) -> None:
        if self._aborted:
            return
        self._aborted = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()


def _nothing() -> None:
    return None


class AbortController:
    """Owns a signal and is the only thing that can pull it."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self) -> None:
        """Pull the signal; later calls do nothing."""
        self.signal._pull()  # pyright: ignore[reportPrivateUsage]  # the controller is the signal's owner


@dataclass(frozen=True, slots=True)
class Context:
    """Immutable, process-local, never durable. Derive children; never keep one as a default."""

    abort_signal: AbortSignal | None = None
    telemetry: TelemetryContext = NOOP_TELEMETRY

    def with_abort_signal(self, signal: AbortSignal | None) -> Context:
        """A child that is cancelled by `signal` instead of this context's own."""
        return replace(self, abort_signal=signal)

    def with_telemetry(self, telemetry: TelemetryContext) -> Context:
        """A child whose spans hang below `telemetry`."""
        return replace(self, telemetry=telemetry)

    @property
    def cancelled(self) -> bool:
        """Whether this invocation's caller went away."""
        return self.abort_signal is not None and self.abort_signal.aborted


BACKGROUND = Context()
