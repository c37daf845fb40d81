"""Conformance: closing, reopening, dying and being refused (§1.5, §1.7, §2.8)."""

from __future__ import annotations

import asyncio
from typing import Any

from harness.context import BACKGROUND
from harness.errors import SessionInUse
from harness.storage.address import list_of, value
from harness.storage.protocol import ListRead
from harness.storage.writes import (
    Write,
    append_list,
    delete_list,
    delete_value,
    insert_entry,
    insert_usage,
    set_value,
)
from harness.testing.conformance.backend import StorageBackend, expect, require
from harness.testing.conformance.checking import Checked
from harness.testing.conformance.samples import Samples


class LifecycleConformance:
    """A session outlives the storage object that serves it."""

    async def test_reopening_changes_nothing(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        work = RandomWork(samples)
        for _ in range(4):
            for _ in range(15):
                await checked.commit(*work.transaction())
            await checked.everything()
            await checked.storage.close(BACKGROUND)
            checked = Checked(await backend.reopen(), checked.model)
            await checked.everything()

    async def test_sequence_numbers_never_return(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        log = list_of(Any, "app.log")
        last = 0
        for _ in range(3):
            result = await checked.commit(append_list(log, 1), delete_list(log))
            assert result.first_seq > last
            # Nothing that carries the highest number is left in the session now.
            last = result.seqs[-1]
            await checked.storage.close(BACKGROUND)
            checked = Checked(await backend.reopen(), checked.model)
        result = await checked.commit(append_list(log, "kept"))
        assert result.first_seq > last
        await checked.read("app.log", "", ListRead(cursor=last))

    async def test_a_crash_loses_no_committed_transaction(self, backend: StorageBackend) -> None:
        require(backend, "durable")
        samples, checked = Samples(), Checked(await backend.create())
        work = RandomWork(samples)
        for _ in range(5):
            for _ in range(8):
                await checked.commit(*work.transaction())
            checked = Checked(await backend.crash(), checked.model)
            await checked.everything()

    async def test_a_second_opener_is_refused(self, backend: StorageBackend) -> None:
        require(backend, "multi_process_lease")
        samples, checked = Samples(), Checked(await backend.create())
        await checked.commit(insert_entry(samples.entry(None)))
        with expect(SessionInUse):
            await backend.reopen()
        await checked.commit(insert_entry(samples.entry(None)))
        await checked.everything()
        await checked.storage.close(BACKGROUND)
        await Checked(await backend.reopen(), checked.model).everything()

    async def test_close_waits_for_admitted_commits(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        log = list_of(Any, "app.log")
        tasks = [
            asyncio.create_task(checked.storage.commit([append_list(log, n)], BACKGROUND))
            for n in range(20)
        ]
        await asyncio.sleep(0)
        await checked.storage.close(BACKGROUND)
        for number, task in enumerate(tasks):
            checked.model.apply([append_list(log, number)], await task)
        await Checked(await backend.reopen(), checked.model).everything()

    async def test_random_work(self, backend: StorageBackend) -> None:
        for seed in range(3):
            samples, checked = Samples(seed), Checked(await backend.create())
            work = RandomWork(samples)
            for _ in range(12):
                for _ in range(6):
                    await checked.commit(*work.transaction())
                await checked.everything()
            await checked.storage.close(BACKGROUND)


class RandomWork:
    """Transactions of every kind of write over a small set of addresses."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._ids: list[str] = []

    def transaction(self) -> list[Write]:
        """One transaction of one to eight writes that is valid after the earlier ones."""
        return [self._write() for _ in range(self._samples.rng.randrange(1, 9))]

    def _write(self) -> Write:
        samples, rng = self._samples, self._samples.rng
        key = rng.choice(("a", "b", "ab", "é", ""))
        match rng.randrange(7):
            case 0 | 1:
                recent = self._ids[-4:]
                parent = rng.choice([*recent, rng.choice(self._ids)]) if self._ids else None
                entry = samples.entry(parent, samples.compaction() if rng.random() < 0.1 else None)
                self._ids.append(entry.id)
                return insert_entry(entry)
            case 2:
                return insert_usage(samples.row(adjustment=rng.random() < 0.2))
            case 3:
                return set_value(
                    value(Any, "app.random", key), {"n": rng.randrange(1_000), "key": key}
                )
            case 4:
                return delete_value(value(Any, "app.random", key))
            case 5:
                return append_list(list_of(Any, "app.random_list", key), rng.randrange(1_000))
            case _:
                return delete_list(list_of(Any, "app.random_list", key))
