"""The metrics of one process, for Prometheus: what is counted as it happens (design §13).

No label names a tenant, a session or an operation: their number has no bound. Every series with a
known label exists from the start, because a counter that first appears as 1 never increased.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector

from harness.errors import OperationKind
from harness.operation.lane_state import Outcome
from harness.usage import Usage
from storage_pg.open_operations import Difference
from workers.meter import Offer, Purged

# A commit takes a flush, a claim a round trip, a wake at most a second: from 1 ms to 30 s.
_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LATE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# The code of an operation that was ended because it led nowhere.
_POISONED = "crash_loop"


class Metrics:
    """A `HostMeter` that keeps what it is told in a registry of its own.

    Several hosts in one process each have one.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._accepted = self._counter("operations_accepted", "Operations accepted.", "kind")
        self._finished = self._counter(
            "operations_finished", "Operations that reached an outcome.", "kind", "outcome"
        )
        self._poisoned = self._counter(
            "operations_poisoned", "Operations ended after passes that led nowhere."
        )
        self._tokens = self._counter("tokens", "Tokens of model answers.", "type")
        self._cost = self._counter("cost_dollars", "What model answers cost.")
        self._claims = self._histogram("claim_seconds", "Until a claim is answered.", _QUICK)
        self._commits = self._histogram(
            "commit_seconds",
            "Until a commit is answered; relaxed ones do not wait for the disk.",
            _QUICK,
            "durability",
        )
        self._wakes = self._histogram(
            "wake_lateness_seconds",
            "From the instant that a retry or poll waited for until its pass begins.",
            _LATE,
        )
        self._dispatches = self._histogram(
            "dispatch_lateness_seconds",
            "From the instant that an operation is due until its job is made.",
            _LATE,
        )
        self._offers = self._counter(
            "offers", "New operations offered to workers, by what came of it.", "answer"
        )
        self._dead = self._counter("hosts_died", "Dead hosts that this process cleared away.")
        self._silent = self._counter("hosts_cut_off", "Silent hosts that this process cut off.")
        self._failovers = self._counter("failovers", "Sessions taken from dead hosts.")
        self._sweeps = self._counter("sweeps", "Sweeps, by whether they found anything.", "found")
        self._repairs = self._counter("sweep_repairs", "Rows that sweeps repaired.", "difference")
        self._dropped = self._counter("watchers_dropped", "Watchers that did not read.")
        self._streams = self._gauge("event_streams", "Clients that listen to event streams.")
        self._purged = self._counter("purged_rows", "Rows removed after their retention.", "table")
        self._prepare()

    # What is told as it happens

    def claimed(self, seconds: float) -> None:
        """See `StorageMeter`."""
        self._claims.observe(seconds)

    def committed(self, seconds: float, *, relaxed: bool) -> None:
        """See `StorageMeter`."""
        self._commits.labels("relaxed" if relaxed else "durable").observe(seconds)

    def accepted(self, kind: OperationKind) -> None:
        """See `StorageMeter`."""
        self._accepted.labels(kind).inc()

    def ended(self, kind: OperationKind, outcome: Outcome, code: str | None) -> None:
        """See `StorageMeter`."""
        self._finished.labels(kind, outcome).inc()
        if code == _POISONED:
            self._poisoned.inc()

    def used(self, usage: Usage) -> None:
        """See `StorageMeter`. A provider that reports less than nothing is not believed."""
        for kind, tokens in (
            ("input", usage.input),
            ("output", usage.output),
            ("cache_read", usage.cache_read),
            ("cache_write", usage.cache_write),
        ):
            self._tokens.labels(kind).inc(max(tokens, 0))
        self._cost.inc(max(usage.cost.total, 0.0))

    def woke(self, late_seconds: float) -> None:
        """See `HostMeter`."""
        self._wakes.observe(max(late_seconds, 0.0))

    def dispatched(self, late_seconds: float) -> None:
        """See `HostMeter`."""
        self._dispatches.observe(max(late_seconds, 0.0))

    def offered(self, answer: Offer) -> None:
        """See `HostMeter`."""
        self._offers.labels(answer).inc()

    def host_died(self, sessions: int) -> None:
        """See `HostMeter`."""
        self._dead.inc()
        self._failovers.inc(sessions)

    def host_cut_off(self) -> None:
        """See `HostMeter`."""
        self._silent.inc()

    def swept(self, found: int) -> None:
        """See `HostMeter`."""
        self._sweeps.labels("something" if found else "nothing").inc()

    def repaired(self, difference: Difference) -> None:
        """See `HostMeter`."""
        self._repairs.labels(difference).inc()

    def watcher_dropped(self) -> None:
        """See `HostMeter`."""
        self._dropped.inc()

    def stream_opened(self) -> None:
        """See `HostMeter`."""
        self._streams.inc()

    def stream_closed(self) -> None:
        """See `HostMeter`."""
        self._streams.dec()

    def purged(self, what: Purged, rows: int) -> None:
        """See `HostMeter`."""
        self._purged.labels(what).inc(rows)

    # What is read when somebody asks

    def show(self, name: str, about: str, read: Callable[[], float]) -> None:
        """A gauge that is read at each scrape."""
        self._gauge(name, about).set_function(read)

    def gauge(self, name: str, about: str, *labels: str) -> Gauge:
        """A gauge that its caller sets."""
        return self._gauge(name, about, *labels)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"laneway_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(f"laneway_{name}", about, labels, registry=self.registry)

    def _histogram(
        self, name: str, about: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"laneway_{name}", about, labels, registry=self.registry, buckets=buckets)

    def _prepare(self) -> None:
        for kind in get_args(OperationKind):
            self._accepted.labels(kind)
            for outcome in get_args(Outcome):
                self._finished.labels(kind, outcome)
        for kind in ("input", "output", "cache_read", "cache_write"):
            self._tokens.labels(kind)
        for durability in ("durable", "relaxed"):
            self._commits.labels(durability)
        for found in ("something", "nothing"):
            self._sweeps.labels(found)
        for difference in get_args(Difference):
            self._repairs.labels(difference)
        for answer in get_args(Offer):
            self._offers.labels(answer)
        for table in get_args(Purged):
            self._purged.labels(table)
