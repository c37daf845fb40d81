"""The doctor compares two clocks at the middle of the question's way."""

from __future__ import annotations

import pytest

from app.doctor.findings import Verdict
from app.doctor.server import clock_skew, read_facts
from harness.clock import SystemClock
from storage_pg.connect import connect
from tests.postgres import Database


class Shifted(SystemClock):
    """The machine's clock, so many milliseconds ahead."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead


@pytest.mark.parametrize(
    ("ahead", "verdict"),
    [(0, "ok"), (3_000, "warn"), (-3_000, "warn"), (3_600_000, "fail"), (-3_600_000, "fail")],
)
async def test_clocks_that_differ(database: Database, ahead: int, verdict: Verdict) -> None:
    async with await connect(database.app_dsn) as connection:
        facts = await read_facts(connection, Shifted(ahead))
    found = clock_skew(facts)
    assert found.verdict == verdict
    if ahead:
        assert ("behind" if ahead > 0 else "ahead") in found.seen
