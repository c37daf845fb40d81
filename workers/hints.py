"""Hints between processes: ids over NOTIFY on side connections; everything works without them (design §5).

A payload is one letter and an id: `o` a worker owns this session now, `c` a session changed while no
worker owned it, `p` a pass over one of this session's operations ended, `d` an operation is due at
this instant (Unix ms).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager

import psycopg

from harness.errors import StorageError
from storage_pg.backoff import Backoff
from storage_pg.connect import connect
from storage_pg.storage import Pool, fetch_from

logger = logging.getLogger(__name__)

CHANNEL = "laneway"
_BATCH = 200
# How long a quiet listening connection goes without being asked whether it is still there.
_PROBE_SECONDS = 5.0
_RECONNECT_FIRST = 0.05
_RECONNECT_LONGEST = 5.0


class Hints:
    """Sends hints, coalesced: what came up while the last call was under way goes in the next one.
    Hears everybody's."""

    def __init__(self, pool: Pool, direct_dsn: str, rng: random.Random) -> None:
        self._pool = pool
        self._dsn = direct_dsn
        self._rng = rng
        self._waiting: dict[str, None] = {}
        self._sender: asyncio.Task[None] | None = None
        # By the kind of hint and the session's id.
        self._sessions: dict[str, list[asyncio.Event]] = {}
        self._due: list[Callable[[int], None]] = []
        self._closed = False

    def owned(self, session_id: str) -> None:
        """A worker of this process owns the session now."""
        self._send("o" + session_id)

    def changed(self, session_id: str) -> None:
        """The session changed, and no worker owns it."""
        self._send("c" + session_id)

    def passed(self, session_id: str) -> None:
        """A pass over an operation of the session ended, most often with the operation."""
        self._send("p" + session_id)

    def due(self, instant: int) -> None:
        """Something is due at this instant (Unix ms)."""
        self._send(f"d{instant}")

    def on_due(self, listener: Callable[[int], None]) -> None:
        """Hear of instants at which something is due."""
        self._due.append(listener)

    def about(self, session_id: str) -> AbstractContextManager[asyncio.Event]:
        """An event that is set at each hint about this session; whoever waits clears it."""
        return self._listening("s" + session_id)

    def passes(self, session_id: str) -> AbstractContextManager[asyncio.Event]:
        """The same for ends of passes."""
        return self._listening("p" + session_id)

    @contextlib.contextmanager
    def _listening(self, what: str) -> Generator[asyncio.Event]:
        event = asyncio.Event()
        listeners = self._sessions.setdefault(what, [])
        listeners.append(event)
        try:
            yield event
        finally:
            listeners.remove(event)
            if not listeners:
                self._sessions.pop(what, None)

    async def listen(self) -> None:
        """Hear hints until cancelled; reconnects, more slowly each time it fails."""
        backoff = Backoff(_RECONNECT_FIRST, _RECONNECT_LONGEST, self._rng)
        while True:
            try:
                async with await connect(self._dsn, "laneway-hints") as connection:
                    await connection.execute(b"LISTEN laneway")
                    backoff.reset()
                    # What was said before this is unknown: look again at everything.
                    self.wake_all()
                    while True:
                        async for note in connection.notifies(timeout=_PROBE_SECONDS):
                            self._heard(note.payload)
                        await connection.execute(b"SELECT 1")
            except (psycopg.Error, OSError) as error:
                logger.warning("lost the connection for hints: %s", error)
                await asyncio.sleep(backoff.pause())

    async def close(self) -> None:
        """Send what waits and stop sending."""
        self._closed = True
        if self._sender is not None:
            await asyncio.wait([self._sender])

    def _heard(self, payload: str) -> None:
        kind, about = payload[:1], payload[1:]
        if kind in ("o", "c", "p"):
            what = "p" if kind == "p" else "s"
            for event in self._sessions.get(what + about, ()):
                event.set()
        elif kind == "d" and about.isdigit():
            for listener in self._due:
                listener(int(about))

    def wake_all(self) -> None:
        """Have everybody look again."""
        for listeners in self._sessions.values():
            for event in listeners:
                event.set()
        for listener in self._due:
            listener(0)

    def _send(self, payload: str) -> None:
        if self._closed:
            return
        self._waiting[payload] = None
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._pump())

    async def _pump(self) -> None:
        try:
            while self._waiting:
                batch = list(self._waiting)[:_BATCH]
                for payload in batch:
                    del self._waiting[payload]
                try:
                    await fetch_from(self._pool, "hint", (batch,))
                except StorageError as error:
                    logger.warning("hints were not sent: %s", error)
        finally:
            self._sender = None
