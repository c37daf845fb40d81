"""Older sessions are migrated by whoever claims them, newer ones are left alone (§7.3)."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import psycopg
import pytest

from harness.context import BACKGROUND
from harness.errors import InvariantDefect, LeaseLost, NewerVersion, SessionInUse
from harness.operation import values
from harness.result import Ok
from harness.runtime.requests import PromptRequest
from harness.session.fork import TreeFork
from harness.session.session import Session
from harness.storage.address import list_of, value
from harness.storage.migrations import CURRENT_SCHEMA, Migration, Mutable, OldValues, Schema
from harness.storage.protocol import EntryScan, ListRead, UsageScan
from harness.storage.records import ElementRecord, ValueRecord
from harness.storage.writes import Write, append_list, set_value
from storage_pg.claimed import ClaimedSession
from storage_pg.copies import PostgresCopies
from storage_pg.due import PollSettings
from storage_pg.migrating import migrate_claimed
from storage_pg.open_operations import sweep
from storage_pg.sessions import PostgresSessions
from tests.session.ends import fill
from tests.session.test_transfer import harness_of
from tests.storage_pg.kit import Kit


class VersionTwo(Migration):
    """Values and lists change shape, place and kind, and go."""

    source = 1

    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        match record:
            case ValueRecord(namespace="app.state"):
                found = json.loads(record.json)
                if "v" in found:
                    return record
                # As it was, although it goes in the same step.
                neighbour = old.get("app.gone", "")
                assert neighbour is not None
                return with_json(record, {"v": 2, "was": found, "beside": json.loads(neighbour)})
            case ValueRecord(namespace="app.gone"):
                return None
            case ValueRecord(namespace="app.single"):
                return ElementRecord(record.seq, "app.many", record.key, record.json)
            case ValueRecord(namespace="pi.lane.config"):
                return with_json(record, {**json.loads(record.json), "thinkingLevel": "high"})
            case ElementRecord(namespace="app.lines"):
                return with_json(record, {"line": json.loads(record.json)})
            case ElementRecord(namespace="app.dropped"):
                return None
            case ElementRecord(namespace="app.only"):
                return ValueRecord(record.seq, "app.chosen", record.key, record.json)
            case _:
                return record


class VersionThree(Migration):
    """Sees what the step before it made."""

    source = 2

    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        if record.namespace == "app.state":
            found = json.loads(record.json)
            assert found["v"] in (2, 3)
            assert old.get("app.gone", "") is None
            return with_json(record, {**found, "v": 3})
        return record


class Fails(VersionThree):
    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        if record.namespace == "app.many":
            raise InvariantDefect("no conversion")
        return super().convert(record, old)


class KeepsHalfAList(Migration):
    source = 1

    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        return None if record.namespace == "app.lines" and record.json == "0" else record


def with_json(record: Mutable, document: Any) -> Mutable:
    return type(record)(record.seq, record.namespace, record.key, json.dumps(document))


TWO = Schema((VersionTwo(),), first_version=1)
THREE = Schema((VersionTwo(), VersionThree()), first_version=1)
STATE = value(Any, "app.state", "k")
LINES = list_of(Any, "app.lines")


def of_schema(kit: Kit, schema: Schema) -> PostgresSessions:
    return PostgresSessions(kit.pool, kit.writer, kit.environment, lease=kit.lease, schema=schema)


async def old_session(kit: Kit) -> str:
    """A closed session of version 1 with something of everything."""
    session = (await kit.open_new()).session(kit.environment)
    await fill(session)
    writes: list[Write] = [
        set_value(STATE, {"a": 1}),
        set_value(value(Any, "app.gone"), "there"),
        set_value(value(Any, "app.single", "s"), 1),
        *(append_list(LINES, n) for n in range(2_500)),
        append_list(list_of(Any, "app.dropped"), 1),
        append_list(list_of(Any, "app.only", "o"), "one"),
    ]
    await session.storage.commit(writes, BACKGROUND)
    await session.close(BACKGROUND)
    return session.id


async def check_new(session: Session, version: int) -> None:
    storage = session.storage
    assert session.metadata.storage_version == version
    state = await storage.get_value(STATE, BACKGROUND)
    assert state is not None
    assert state.value == {"v": version, "was": {"a": 1}, "beside": "there"}
    assert await storage.get_value(value(Any, "app.gone"), BACKGROUND) is None
    assert await storage.get_value(value(Any, "app.single", "s"), BACKGROUND) is None
    many = await storage.read_list(list_of(Any, "app.many", "s"), None, BACKGROUND)
    assert [element.value for element in many] == [1]
    lines = await storage.read_list(LINES, ListRead(limit=10_000), BACKGROUND)
    assert [element.value for element in lines] == [{"line": n} for n in range(2_500)]
    assert [line.seq for line in lines] == list(range(lines[0].seq, lines[0].seq + 2_500))
    assert await storage.read_list(list_of(Any, "app.dropped"), None, BACKGROUND) == []
    chosen = await storage.get_value(value(Any, "app.chosen", "o"), BACKGROUND)
    assert chosen is not None
    assert chosen.value == "one"
    # What an attachment reads came with the claim, and must not be the old.
    config = await storage.get_value(values.lane_config("main"), BACKGROUND)
    assert config is not None
    assert config.value.thinking_level == "high"


def stored_version(kit: Kit, session_id: str) -> int:
    with psycopg.connect(kit.database.owner_dsn) as owner:
        row = owner.execute(
            "SELECT storage_version FROM laneway.sessions WHERE id = %s", (session_id,)
        ).fetchone()
    assert row is not None
    return row[0]


def set_version(kit: Kit, session_id: str, version: int) -> None:
    with psycopg.connect(kit.database.owner_dsn) as owner:
        owner.execute(
            "UPDATE laneway.sessions SET storage_version = %s WHERE id = %s", (version, session_id)
        )


async def test_a_claim_migrates_what_an_older_build_wrote(kit: Kit) -> None:
    session_id = await old_session(kit)
    before = kit.sessions.reader(kit.tenant, session_id)
    entries = await before.scan_entries(EntryScan(), BACKGROUND)
    ledger = await before.scan_usage(UsageScan(), BACKGROUND)
    for version, schema in ((2, TWO), (3, THREE), (3, THREE)):
        sessions = of_schema(kit, schema)
        session = (await sessions.open(kit.tenant, session_id)).session(kit.environment)
        await check_new(session, version)
        assert await session.storage.scan_entries(EntryScan(), BACKGROUND) == entries
        assert await session.storage.scan_usage(UsageScan(), BACKGROUND) == ledger
        written = await session.storage.commit([append_list(LINES, {"line": -1})], BACKGROUND)
        assert written.first_seq > entries[-1].seq
        await session.close(BACKGROUND)
        assert stored_version(kit, session_id) == version
        with psycopg.connect(kit.database.owner_dsn) as owner:
            owner.execute(
                "DELETE FROM laneway.list_values WHERE session_id = %s AND seq = %s",
                (session_id, written.first_seq),
            )


async def test_a_death_between_two_steps_goes_on_from_the_first(kit: Kit) -> None:
    session_id = await old_session(kit)
    broken = of_schema(kit, Schema((VersionTwo(), Fails()), first_version=1))
    for _ in range(2):
        with pytest.raises(InvariantDefect, match="no conversion"):
            await broken.open(kit.tenant, session_id)
        assert stored_version(kit, session_id) == 2
    sessions = of_schema(kit, THREE)
    session = (await sessions.open(kit.tenant, session_id)).session(kit.environment)
    await check_new(session, 3)
    await session.close(BACKGROUND)


async def test_a_step_that_breaks_the_rules_changes_nothing(kit: Kit) -> None:
    session_id = await old_session(kit)
    broken = of_schema(kit, Schema((KeepsHalfAList(),), first_version=1))
    with pytest.raises(InvariantDefect, match="part of the list"):
        await broken.open(kit.tenant, session_id)
    assert stored_version(kit, session_id) == 1
    # It was given back, as it was.
    session = (await kit.sessions.open(kit.tenant, session_id)).session(kit.environment)
    lines = await session.storage.read_list(LINES, ListRead(limit=10_000), BACKGROUND)
    assert [line.value for line in lines] == list(range(2_500))
    await session.close(BACKGROUND)


async def test_who_lost_the_claim_migrates_nothing(kit: Kit) -> None:
    session_id = await old_session(kit)
    claimed = await kit.lease.claim(kit.tenant, session_id)
    assert isinstance(claimed, ClaimedSession)
    late = dataclasses.replace(claimed, fence=claimed.fence - 1)
    with pytest.raises(LeaseLost):
        await migrate_claimed(kit.pool, late, TWO, 0, PollSettings())
    assert stored_version(kit, session_id) == 1
    assert await migrate_claimed(kit.pool, claimed, CURRENT_SCHEMA, 0, PollSettings()) is claimed
    await kit.lease.release(session_id, claimed.fence)


async def test_an_open_operation_is_due_when_its_converted_state_says(kit: Kit) -> None:
    harness = await harness_of((await kit.open_new()).session(kit.environment))
    accepted = await harness.accept(PromptRequest(prompt="go"), BACKGROUND)
    assert isinstance(accepted, Ok)
    session_id = harness.session.id
    await harness.close(BACKGROUND)
    operation = accepted.value.operation_id
    later = kit.environment.clock.now_ms() + 3_600_000
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute(
            "UPDATE laneway.open_operations SET due_at = %s WHERE operation_id = %s",
            (later, operation),
        )
        owned = await of_schema(kit, TWO).open(kit.tenant, session_id)
        row = owner.execute(
            "SELECT due_at FROM laneway.open_operations WHERE operation_id = %s", (operation,)
        ).fetchone()
    assert row is not None
    assert row[0] <= kit.environment.clock.now_ms()
    harness = await harness_of(owned.session(kit.environment))
    outcome = await harness.resume(BACKGROUND)
    assert isinstance(outcome, Ok)
    assert outcome.value.kind == "completed"
    await harness.close(BACKGROUND)


async def test_what_a_newer_build_wrote_is_refused_and_said_once(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await harness_of((await kit.open_new()).session(kit.environment))
    accepted = await harness.accept(PromptRequest(prompt="go"), BACKGROUND)
    assert isinstance(accepted, Ok)
    session_id = harness.session.id
    await harness.close(BACKGROUND)
    set_version(kit, session_id, 2)
    with caplog.at_level(logging.WARNING, "storage_pg.sessions"):
        for _ in range(3):
            with pytest.raises(NewerVersion) as refused:
                await kit.sessions.open(kit.tenant, session_id)
    assert (refused.value.found, refused.value.supported) == (2, 1)
    assert [session_id in record.getMessage() for record in caplog.records] == [True]
    with psycopg.connect(kit.database.owner_dsn) as owner:
        assert owner.execute(
            "SELECT s.owner_host, s.storage_version, o.status, d.passes "
            "FROM laneway.sessions AS s "
            "JOIN laneway.operations AS o ON o.session_id = s.id "
            "JOIN laneway.open_operations AS d ON d.session_id = s.id WHERE s.id = %s",
            (session_id,),
        ).fetchone() == (None, 2, "open", 0)
    # A newer process takes it and goes on.
    owned = await of_schema(kit, TWO).open(kit.tenant, session_id)
    harness = await harness_of(owned.session(kit.environment))
    assert isinstance(await harness.resume(BACKGROUND), Ok)
    await harness.close(BACKGROUND)


async def test_copies_are_of_the_current_version(kit: Kit) -> None:
    session_id = await old_session(kit)
    sessions = of_schema(kit, TWO)
    copies = PostgresCopies(kit.database.app_dsn, kit.tenant, kit.environment, sessions)
    owned = await kit.sessions.open(kit.tenant, session_id)
    with pytest.raises(SessionInUse):
        await copies.fork(session_id, TreeFork(), BACKGROUND)
    await owned.storage.close(BACKGROUND)
    made = await copies.fork(session_id, TreeFork(), BACKGROUND)
    assert (made.storage_version, stored_version(kit, session_id)) == (2, 2)
    fork = (await sessions.open(kit.tenant, made.id)).session(kit.environment)
    config = await fork.storage.get_value(values.lane_config("main"), BACKGROUND)
    assert config is not None
    assert config.value.thinking_level == "high"
    await fork.close(BACKGROUND)
    older = PostgresCopies(kit.database.app_dsn, kit.tenant, kit.environment, kit.sessions)
    with pytest.raises(NewerVersion):
        await older.fork(session_id, TreeFork(), BACKGROUND)


async def test_a_state_that_cannot_be_read_does_not_stop_the_sweep(fresh_kit: Kit) -> None:
    kit, operations = fresh_kit, list[str]()
    for _ in range(3):
        harness = await harness_of((await kit.open_new()).session(kit.environment))
        accepted = await harness.accept(PromptRequest(prompt="go"), BACKGROUND)
        assert isinstance(accepted, Ok)
        operations.append(accepted.value.operation_id)
        await harness.close(BACKGROUND)
    newer, lost, plain = operations

    async def repaired() -> dict[str, str]:
        now = kit.environment.clock.now_ms
        found = sweep(kit.pool, now, PollSettings())
        return {repair.operation_id: repair.difference async for repair in found}

    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute(
            'UPDATE laneway.scalar_values SET value = \'{"kind":"future"}\' '
            "WHERE namespace = 'pi.op.state' AND key = ANY (%s)",
            ([newer, lost],),
        )
        owner.execute(
            "DELETE FROM laneway.open_operations WHERE operation_id = ANY (%s::uuid[])",
            ([lost, plain],),
        )
    # What no drive would ever look at gets its row, readable or not.
    assert await repaired() == {lost: "missing", plain: "missing"}
    assert await repaired() == {}
