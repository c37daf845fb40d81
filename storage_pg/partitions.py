"""Partitions of the tables whose ids carry their time: made ahead, inspected (§6 of the spec, design §5, §11).

A period's bounds are UUIDs made of its first millisecond and a zero tail; each upper bound is the
next period's lower bound. Ids outside every dated partition go to the DEFAULT one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias, assert_never

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from storage_pg.layout import PARTITIONED, SCHEMA
from storage_pg.queries import QUERIES

Period: TypeAlias = Literal["day", "week", "month"]

_BOUND = re.compile(r"FROM \('([0-9a-f-]{36})'\) TO \('([0-9a-f-]{36})'\)")


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open stretch of time, Unix milliseconds, and the name of its partitions' suffix."""

    start_ms: int
    end_ms: int
    suffix: str


@dataclass(frozen=True, slots=True)
class Partition:
    """One existing partition. Bounds are None for the DEFAULT one; sizes are the server's estimates."""

    table: str
    name: str
    start_ms: int | None
    end_ms: int | None
    rows: int
    bytes: int


def boundary(ms: int) -> uuid.UUID:
    """The smallest UUID with this time prefix."""
    return uuid.UUID(int=ms << 80)


def boundary_ms(bound: uuid.UUID) -> int:
    """The time prefix of a bound."""
    return bound.int >> 80


def span_at(ms: int, period: Period) -> Span:
    """The period that contains this instant (UTC; weeks begin on Monday)."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case "day":
            start, end, suffix = day, day + timedelta(days=1), f"{day:%Y_%m_%d}"
        case "week":
            start = day - timedelta(days=day.weekday())
            end, suffix = start + timedelta(days=7), f"{start:%G_w%V}"
        case "month":
            start = day.replace(day=1)
            end, suffix = (start + timedelta(days=32)).replace(day=1), f"{start:%Y_%m}"
        case _:
            assert_never(period)
    return Span(int(start.timestamp() * 1000), int(end.timestamp() * 1000), suffix)


def spans_from(ms: int, count: int, period: Period) -> Iterator[Span]:
    """The period at `ms` and the ones after it, `count` in all."""
    for _ in range(count):
        span = span_at(ms, period)
        yield span
        ms = span.end_ms


def ensure_ahead(
    connection: psycopg.Connection[TupleRow], now_ms: int, count: int, period: Period
) -> list[str]:
    """Make the partitions of the current period and the next ones where missing; returns new names.

    `connection` is the owner's, outside a transaction. Several processes may call this at once. A
    period that already lies, in whole or in part, in an attached partition is left to that
    partition, so the period's length may change between calls. Rows of the period that wait in
    the DEFAULT partition make attaching fail (`psycopg.errors.CheckViolation`).
    """
    made: list[str] = []
    for span in spans_from(now_ms, count, period):
        with connection.transaction():
            connection.execute(QUERIES["partition_lock"])
            taken = _bounds(connection)
            for table in PARTITIONED:
                if any(start < span.end_ms and span.start_ms < end for start, end in taken[table]):
                    continue
                name = f"{table}_{span.suffix}"
                _create(connection, table, name, span)
                made.append(name)
    return made


def _create(connection: psycopg.Connection[TupleRow], table: str, name: str, span: Span) -> None:
    # Identifiers and bounds cannot be parameters of DDL; psycopg quotes them.
    connection.execute(
        sql.SQL(QUERIES["partition_create"]).format(
            partition=sql.Identifier(SCHEMA, name),
            table=sql.Identifier(SCHEMA, table),
            low=sql.Literal(str(boundary(span.start_ms))),
            high=sql.Literal(str(boundary(span.end_ms))),
        )
    )


def _bounds(connection: psycopg.Connection[TupleRow]) -> dict[str, list[tuple[int, int]]]:
    taken: dict[str, list[tuple[int, int]]] = {table: [] for table in PARTITIONED}
    for partition in inspect(connection):
        if partition.start_ms is not None and partition.end_ms is not None:
            taken[partition.table].append((partition.start_ms, partition.end_ms))
    return taken


def inspect(connection: psycopg.Connection[TupleRow]) -> list[Partition]:
    """All partitions, by table and time, the DEFAULT ones last."""
    found: list[Partition] = []
    for table, name, bound, rows, size in connection.execute(
        QUERIES["partition_list"], (SCHEMA, list(PARTITIONED))
    ):
        match = _BOUND.search(bound)
        start, end = (
            (boundary_ms(uuid.UUID(match[1])), boundary_ms(uuid.UUID(match[2])))
            if match
            else (None, None)
        )
        found.append(Partition(table, name, start, end, rows, size))
    return sorted(found, key=lambda p: (p.table, p.start_ms is None, p.start_ms or 0))
