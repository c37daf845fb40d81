"""The two ends of a transfer: every backend that can give and take sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from harness.context import BACKGROUND
from harness.entries import CustomPayload
from harness.environment import Environment
from harness.operation import values
from harness.result import Ok
from harness.session.repo import CreateOptions, Repository
from harness.session.repo_files import JsonlSessions, SqliteSessions
from harness.session.repo_memory import MemorySessions
from harness.session.session import Session
from harness.session.transfer import ImportTarget
from harness.settings import LaneConfiguration, ModelIdentity
from harness.storage.address import list_of, value
from harness.storage.writes import (
    Write,
    append_list,
    delete_list,
    delete_value,
    insert_entry,
    insert_usage,
    set_value,
)
from harness.testing.conformance.samples import Samples
from storage_pg.copies import PostgresCopies
from tests.storage_pg.kit import Kit

NOTE = value(object, "app.note")
LOG = list_of(object, "app.log")
ENVIRONMENT = Environment.system()


class End(Protocol):
    """One backend."""

    target: ImportTarget

    async def create(self) -> Session: ...
    async def open(self, session_id: str) -> Session: ...


class EmbeddedEnd:
    """A repository."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.target: ImportTarget = repository

    async def create(self) -> Session:
        options = CreateOptions(cwd="/tmp/é", metadata={"n": [1, {"m": None}]})
        return await self.repository.create(options, BACKGROUND)

    async def open(self, session_id: str) -> Session:
        return await self.repository.open(
            await self.repository.get(session_id, BACKGROUND), BACKGROUND
        )


class PostgresEnd:
    """A tenant of a database."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.copies = PostgresCopies(
            kit.database.app_dsn, kit.tenant, kit.environment, kit.sessions
        )
        self.target: ImportTarget = self.copies

    async def create(self) -> Session:
        return (await self.kit.open_new()).session(self.kit.environment)

    async def open(self, session_id: str) -> Session:
        owned = await self.kit.sessions.open(self.kit.tenant, session_id)
        return owned.session(self.kit.environment)


def embedded(name: str, folder: Path) -> EmbeddedEnd:
    """A fresh embedded repository."""
    match name:
        case "memory":
            return EmbeddedEnd(MemorySessions(ENVIRONMENT))
        case "jsonl":
            return EmbeddedEnd(JsonlSessions(folder, ENVIRONMENT))
        case _:
            return EmbeddedEnd(SqliteSessions(folder, ENVIRONMENT))


async def fill(session: Session) -> None:
    """Everything a session can hold: branches, labels, lanes, ledger, values and lists, some deleted."""
    samples, storage = Samples(), session.storage
    root = samples.entry(None)
    first = samples.entry(root.id, samples.assistant("NUL \x00 lone \ud800 é 認"))
    second = samples.entry(first.id, samples.compaction())
    side = samples.entry(root.id, samples.branch_summary(second.id))
    tip = samples.entry(second.id, CustomPayload(custom_type="x", data={"b": 1.5, "a": [None]}))
    config = LaneConfiguration(
        model=ModelIdentity(provider="p", model_id="m"),
        thinking_level="low",
        active_tool_names=("a",),
    )
    commits: list[list[Write]] = [
        [insert_entry(root), insert_entry(first), set_value(NOTE, {"x": "\ud800é"})],
        [append_list(LOG, 1), append_list(LOG, {"deep": [1, 2]}), insert_usage(samples.row())],
        [delete_list(LOG), append_list(LOG, "after"), append_list(LOG, 2.5)],
        [insert_entry(second), insert_entry(side), insert_usage(samples.row(entry_id=first.id))],
        [insert_entry(tip), set_value(values.lane_leaf("main"), tip.id)],
        [set_value(values.entry_label(side.id), "side"), set_value(values.SESSION_NAME, "named")],
        [set_value(values.lane_config("main"), config), set_value(value(int, "gone"), 1)],
        [delete_value(value(int, "gone"))],
    ]
    for writes in commits:
        await storage.commit(writes, BACKGROUND)
    created = await session.create_lane("other", side.id, config, None, BACKGROUND)
    assert isinstance(created, Ok)
