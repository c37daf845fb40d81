"""Storage versions: chained, total conversions of a session's values and lists when it opens (§7).

Entries and ledger rows are never converted: they stay readable for ever. Everything else is a small,
known set of current values and lists, and a change of their shape ships the mapping for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec

from harness.errors import InvariantDefect, NewerVersion
from harness.storage.memory import MemoryState
from harness.storage.memory_copy import MemorySnapshot, restore
from harness.storage.metadata import STORAGE_VERSION, SessionMetadata
from harness.storage.records import ElementRecord, ValueRecord

Mutable: TypeAlias = ValueRecord | ElementRecord


class OldValues(Protocol):
    """The values as they were before the running step, for conversions that depend on others."""

    def get(self, namespace: str, key: str) -> str | None:
        """The JSON text of a value, or None."""
        ...


class Migration(ABC):
    """One step, from `source` to the version after it."""

    source: int

    @abstractmethod
    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        """What becomes of one value or list element; None removes it.

        Total: every stored record is asked about, and what has no successor is mapped to an explicit
        safe choice. Idempotent over what is converted already. The result keeps the sequence number
        and may have another address or kind. The elements of one list stay or go together.
        """


@dataclass(frozen=True, slots=True)
class Schema:
    """The storage version this build writes, and how it gets there from older ones."""

    migrations: Sequence[Migration] = ()
    first_version: int = STORAGE_VERSION

    @property
    def version(self) -> int:
        """The current version."""
        return self.first_version + len(self.migrations)

    def pending(self, stored: int) -> Sequence[Migration]:
        """The steps a store of that version needs, in order; raises `NewerVersion`."""
        if stored > self.version:
            raise NewerVersion(stored, self.version)
        return [step for step in self.migrations if step.source >= stored]

    def __post_init__(self) -> None:
        sources = [step.source for step in self.migrations]
        if sources != list(range(self.first_version, self.version)):
            raise InvariantDefect(f"migrations must follow one another, not {sources}")


CURRENT_SCHEMA = Schema()


@dataclass(slots=True)
class Step:
    """Runs one migration over records and checks that it keeps the rules."""

    migration: Migration
    old: OldValues
    _fate: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])

    def apply(self, records: Iterable[Mutable]) -> Iterator[tuple[Mutable, Mutable | None]]:
        """Each record with what becomes of it."""
        for record in records:
            converted = self.migration.convert(record, self.old)
            if converted is not None and converted.seq != record.seq:
                raise InvariantDefect("a migration may not change sequence numbers")
            if isinstance(record, ElementRecord):
                place, kept = (record.namespace, record.key), converted is not None
                if self._fate.setdefault(place, kept) != kept:
                    raise InvariantDefect(f"a migration keeps a part of the list {place}")
            yield record, converted


class _MapValues:
    """Old values of a session whose maps are in memory."""

    def __init__(self, records: Iterable[ValueRecord]) -> None:
        self._texts = {(record.namespace, record.key): record.json for record in records}

    def get(self, namespace: str, key: str) -> str | None:
        """The JSON text of a value, or None."""
        return self._texts.get((namespace, key))


def migrate_maps(
    metadata: SessionMetadata, state: MemoryState, schema: Schema
) -> tuple[SessionMetadata, MemoryState]:
    """A session's content at the current version; the same objects when it is there already.

    Raises `NewerVersion`. The old maps are not touched, so a failure changes nothing.
    """
    for migration in schema.pending(metadata.storage_version):
        snapshot = MemorySnapshot(state)
        step = Step(migration, _MapValues(snapshot.values()))
        state = MemoryState()
        for unchanged in (*snapshot.entries(), *snapshot.usage()):
            restore(state, unchanged)
        converted = [
            after
            for records in (snapshot.values(), snapshot.elements())
            for _, after in step.apply(records)
            if after is not None
        ]
        for record in sorted(converted, key=lambda record: record.seq):
            restore(state, record)
        state.next_seq = snapshot.next_seq
        metadata = msgspec.structs.replace(metadata, storage_version=migration.source + 1)
    return metadata, state
