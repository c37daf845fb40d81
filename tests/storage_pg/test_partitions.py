"""Partitions are made ahead, side by side, and what fits none still finds a place."""

from __future__ import annotations

import itertools
import threading
import uuid

import psycopg
import pytest

from storage_pg.layout import PARTITIONED
from storage_pg.partitions import Period, boundary, ensure_ahead, inspect, span_at, spans_from
from tests.postgres import Database

DAY = 86_400_000
NOW = 1_900_000_000_000  # 2030-03-17: after everything that the template made ahead


@pytest.mark.parametrize("period", ["day", "week", "month"])
def test_spans_touch_and_cover(period: Period) -> None:
    spans = list(spans_from(NOW, 40, period))
    assert spans[0].start_ms <= NOW < spans[0].end_ms
    for left, right in itertools.pairwise(spans):
        assert left.end_ms == right.start_ms
    assert len({span.suffix for span in spans}) == 40
    for span in spans:
        assert span_at(span.end_ms - 1, period) == span


def test_a_boundary_sorts_before_every_id_of_its_time() -> None:
    low, high = boundary(NOW), boundary(NOW + 1)
    assert low.bytes < uuid.UUID(int=(NOW << 80) | 1).bytes < high.bytes


def test_ahead_is_made_once(fresh_database: Database) -> None:
    with psycopg.connect(fresh_database.owner_dsn, autocommit=True) as owner:
        made = ensure_ahead(owner, NOW, 3, "week")
        assert len(made) == 3 * len(PARTITIONED)
        assert ensure_ahead(owner, NOW, 3, "week") == []
        assert len(ensure_ahead(owner, NOW + 7 * DAY, 3, "week")) == len(PARTITIONED)
        found = [
            p for p in inspect(owner) if p.start_ms is not None and p.start_ms >= NOW - 7 * DAY
        ]
        for table in PARTITIONED:
            spans = [(p.start_ms, p.end_ms) for p in found if p.table == table]
            assert len(spans) == 4
            for (_, end), (start, _) in itertools.pairwise(spans):
                assert end == start


def test_another_period_does_not_overlap(fresh_database: Database) -> None:
    with psycopg.connect(fresh_database.owner_dsn, autocommit=True) as owner:
        ensure_ahead(owner, NOW, 1, "month")
        # The days of the month that is there already are left to it.
        assert ensure_ahead(owner, NOW, 3, "day") == []
        assert len(ensure_ahead(owner, NOW + 31 * DAY, 2, "day")) == 2 * len(PARTITIONED)


def test_several_processes_may_make_them_at_once(fresh_database: Database) -> None:
    made: list[str] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with psycopg.connect(fresh_database.owner_dsn, autocommit=True) as owner:
                made.extend(ensure_ahead(owner, NOW, 4, "day"))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(made) == len(set(made)) == 4 * len(PARTITIONED)
