"""Says every few seconds that a host lives, from a thread that no tool and no loop can block."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import psycopg
from psycopg.rows import TupleRow

from storage_pg.connect import address
from storage_pg.queries import QUERIES


class Heartbeat:
    """Renews one host's row every `interval` seconds until stopped.

    Called on the thread: `gone` when the row no longer exists, because others declared this host
    dead; `leave` at each beat after an operator told the host to leave.
    """

    def __init__(
        self,
        dsn: str,
        host_id: str,
        interval: float,
        gone: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        self._dsn = dsn
        self._host_id = host_id
        self._interval = interval
        self._gone = gone
        self._leave = leave
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"laneway-heartbeat-{host_id}", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; returns at once."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for the thread to end, at most a few seconds when the database does not answer."""
        self._thread.join(timeout=5)

    def _run(self) -> None:
        connection: psycopg.Connection[TupleRow] | None = None
        while not self._stopped.wait(self._interval):
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(
                        address(self._dsn, "laneway-heartbeat"),
                        autocommit=True,
                        prepare_threshold=None,
                    )
                beat = connection.execute(QUERIES["heartbeat"], (self._host_id,)).fetchone()
                if beat is None:
                    if not self._stopped.is_set():
                        self._gone()
                    break
                if beat[0] and not self._stopped.is_set():
                    self._leave()
            except psycopg.Error:
                # The database is away: try again at the next beat. Others decide what it means.
                _close(connection)
                connection = None
        _close(connection)


def _close(connection: psycopg.Connection[TupleRow] | None) -> None:
    if connection is not None:
        with contextlib.suppress(psycopg.Error):
            connection.close()
