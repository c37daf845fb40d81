"""What a host tells whoever counts its work: a port above the storage's, and a default that counts nothing (design §13)."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from storage_pg.meter import SilentStorageMeter, StorageMeter
from storage_pg.open_operations import Difference

Purged: TypeAlias = Literal["receipts", "idempotency_keys"]
# What came of a new operation's offer to a worker; only the first spares its dispatch.
Offer: TypeAlias = Literal["taken", "no_room", "elsewhere", "no_answer", "refused"]


class HostMeter(StorageMeter, Protocol):
    """Hears of wakes, deaths, sweeps and watchers. It must neither wait nor raise."""

    def woke(self, late_seconds: float) -> None:
        """A pass began this long after the instant that its operation waited for."""
        ...

    def dispatched(self, late_seconds: float) -> None:
        """A job was made this long after its operation became due."""
        ...

    def offered(self, answer: Offer) -> None:
        """A worker was offered a new operation."""
        ...

    def host_died(self, sessions: int) -> None:
        """A dead host was cleared away, and so many sessions with it that others go on with."""
        ...

    def host_cut_off(self) -> None:
        """A host fell silent and was cut off."""
        ...

    def swept(self, found: int) -> None:
        """A sweep came to its end and had found so many wrong rows."""
        ...

    def repaired(self, difference: Difference) -> None:
        """A sweep repaired a row."""
        ...

    def watcher_dropped(self) -> None:
        """A watcher did not take its events and was dropped."""
        ...

    def stream_opened(self) -> None:
        """A client listens to an event stream."""
        ...

    def stream_closed(self) -> None:
        """It does not any more."""
        ...

    def purged(self, what: Purged, rows: int) -> None:
        """Rows past their retention were removed."""
        ...


class SilentHostMeter(SilentStorageMeter):
    """Counts nothing."""

    def woke(self, late_seconds: float) -> None:
        """Nothing."""

    def dispatched(self, late_seconds: float) -> None:
        """Nothing."""

    def offered(self, answer: Offer) -> None:
        """Nothing."""

    def host_died(self, sessions: int) -> None:
        """Nothing."""

    def host_cut_off(self) -> None:
        """Nothing."""

    def swept(self, found: int) -> None:
        """Nothing."""

    def repaired(self, difference: Difference) -> None:
        """Nothing."""

    def watcher_dropped(self) -> None:
        """Nothing."""

    def stream_opened(self) -> None:
        """Nothing."""

    def stream_closed(self) -> None:
        """Nothing."""

    def purged(self, what: Purged, rows: int) -> None:
        """Nothing."""


SILENT: HostMeter = SilentHostMeter()
