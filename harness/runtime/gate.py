"""The effect gate: decides synchronously whether ordinary external work may still start (§4.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from harness.context import AbortController, AbortSignal
from harness.errors import HarnessError

T = TypeVar("T")


class AbortRequested(HarnessError):
    """Cancellation won the gate; `cancellation` resolves when its marker is durable."""

    def __init__(self, cancellation: asyncio.Future[None]) -> None:
        super().__init__("abort requested")
        self._cancellation = cancellation

    @property
    def cancellation(self) -> asyncio.Future[None]:
        """To be awaited by any number of tasks: one that is cancelled takes nothing from the rest."""
        return asyncio.shield(self._cancellation)


class OperationEnded(HarnessError):
    """The operation is over or belongs to somebody else; this pass may start and write nothing."""


class Gate:
    """The half that procedures see: admission and the signal of admitted work."""

    __slots__ = ("_cancellation", "_closed", "_controller")

    def __init__(self) -> None:
        self._controller = AbortController()
        self._cancellation: asyncio.Future[None] | None = None
        self._closed: BaseException | None = None

    @property
    def signal(self) -> AbortSignal:
        """Pulled when admitted work should stop."""
        return self._controller.signal

    def admit(self, invoke: Callable[[], T]) -> T:
        """Check and invoke with no yield in between; raises when the gate is not open."""
        if self._closed is not None:
            raise self._closed
        if self._cancellation is not None:
            raise AbortRequested(self._cancellation)
        return invoke()


class GateControl(Gate):
    """The half that the drive's owner holds."""

    __slots__ = ()

    def begin_abort(self, cancellation: asyncio.Future[None]) -> None:
        """Refuse new work from now on; `cancellation` resolves with the marker's commit."""
        if self._cancellation is None:
            self._cancellation = cancellation

    def signal_abort(self) -> None:
        """Ask admitted work to stop."""
        self._controller.abort()

    def close(self, error: BaseException) -> None:
        """Refuse everything for good and ask admitted work to stop."""
        if self._closed is None:
            self._closed = error
        self._controller.abort()

    @property
    def closed(self) -> bool:
        """Whether the gate is closed for good."""
        return self._closed is not None
