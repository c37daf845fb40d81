"""Sessions of an older or newer storage version on a fleet of both builds (§7.3, design §6)."""

from __future__ import annotations

import json
import logging

import pytest

from harness.storage.migrations import Migration, Mutable, OldValues, Schema
from tests.workers.kit import Fleet
from workers.commands import Inspect


class HigherThinking(Migration):
    """The next build's: every lane thinks harder."""

    source = 1

    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        if record.namespace != "pi.lane.config":
            return record
        document = {**json.loads(record.json), "thinkingLevel": "high"}
        return type(record)(record.seq, record.namespace, record.key, json.dumps(document))


NEXT = Schema((HigherThinking(),), first_version=1)


async def test_an_older_session_is_migrated_before_it_is_driven(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, "echo: x")
    worker = await fleet.worker(jobs=False)
    worker.sessions.schema = NEXT
    await worker.drive(fleet.tenant, session, "main", operation)
    assert await fleet.settled(operation) == ["completed"]
    rows = await fleet.sql(
        "SELECT s.storage_version, v.value FROM laneway.sessions AS s "
        "JOIN laneway.scalar_values AS v ON v.session_id = s.id "
        "WHERE s.id = %s AND v.namespace = 'pi.lane.config'",
        session,
    )
    assert [(version, json.loads(text)["thinkingLevel"]) for version, text in rows] == [(2, "high")]


async def test_a_newer_session_is_left_to_a_newer_worker(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    api = await fleet.api()
    session, other = await fleet.session(), await fleet.session()
    operation = await fleet.prompt(api, session, "echo: x")
    await fleet.sql("UPDATE laneway.sessions SET storage_version = 2 WHERE id = %s", session)
    old = await fleet.worker(jobs=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            await old.drive(fleet.tenant, session, "main", operation)
    said = [record.getMessage() for record in caplog.records if session in record.getMessage()]
    assert len([text for text in said if "newer process" in text]) == 1
    rows = await fleet.sql(
        "SELECT passes FROM laneway.open_operations WHERE operation_id = %s", operation
    )
    assert rows == [(0,)]
    # It does its other work meanwhile.
    done = await fleet.prompt(old, other, "echo: y")
    assert await fleet.settled(done) == ["completed"]
    new = await fleet.worker(jobs=False)
    new.sessions.schema = NEXT
    await new.drive(fleet.tenant, session, "main", operation)
    assert await fleet.settled(operation) == ["completed"]
    seen = await fleet.ok(new, session, Inspect(lane="main"))
    assert seen["lastResult"]["outcome"] == "completed"
