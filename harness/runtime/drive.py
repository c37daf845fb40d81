"""One installed drive pass: who owns it, how it ends, and what it may still start (§4.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.context import Context
from harness.errors import DriveAbandoned
from harness.operation.results import DriveOutcome
from harness.runtime.gate import Gate, GateControl
from harness.session.line import observe
from harness.telemetry import Span


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """The expected operation, and how far a pass may wait.

    `wait_for_retry` waits locally through retry waits; `poll_deferred` permits one poll of a
    deferred response.
    """

    operation_id: str
    wait_for_retry: bool = False
    poll_deferred: bool = False


class Drive:
    """Process-local ownership of one pass. The first to settle or fail it decides its completion."""

    def __init__(self, options: DriveOptions, context: Context) -> None:
        self.operation_id = options.operation_id
        self.wait_for_retry = options.wait_for_retry
        self.deferred_permits = 1 if options.poll_deferred else 0
        self.context = context.with_abort_signal(None)
        self.completion: asyncio.Future[DriveOutcome] = asyncio.get_running_loop().create_future()
        observe(self.completion)
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.finalizing = False
        self.pass_ended = False
        self.turn_span: tuple[str, Span] | None = None
        self.task: asyncio.Task[Any] | None = None
        self._gate = GateControl()
        self._unsubscribe: Callable[[], None] | None = None
        self._installer = context.abort_signal

    @property
    def gate(self) -> Gate:
        """What procedures admit their effects through."""
        return self._gate

    def watch_installer(self, abandon: Callable[[BaseException], None]) -> None:
        """Abandon the pass when the installing caller's context is cancelled."""
        if self._installer is not None:
            self._unsubscribe = self._installer.on_abort(lambda: abandon(DriveAbandoned()))

    def begin_abort(self, cancellation: asyncio.Future[None]) -> None:
        """Refuse new work while the cancellation marker is committed."""
        self._gate.begin_abort(cancellation)

    def signal_abort(self) -> None:
        """The marker is durable: ask admitted work to stop."""
        self._gate.signal_abort()

    def close_gate(self, error: BaseException) -> None:
        """Refuse all further work."""
        self._gate.close(error)

    def settle(self, outcome: DriveOutcome) -> None:
        """Complete the pass for its installer and all joiners; later calls do nothing."""
        self._release()
        if not self.completion.done():
            self.completion.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """End the pass with an exception for everybody; later calls do nothing."""
        self._release()
        if not self.completion.done():
            self.completion.set_exception(error)

    def _release(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
