"""What a session's owner makes is noted under the request's key by the commit that makes it, or not at all."""

from __future__ import annotations

import asyncio

import pytest

from harness.context import BACKGROUND
from harness.entries import CustomPayload, NewEntry
from harness.errors import LeaseLost, StorageCorrupt
from harness.session.once import Once, Superseded
from harness.storage.address import value
from harness.storage.writes import insert_entry, set_value
from storage_pg.idempotency import (
    DAY_MS,
    STANDS_FOR,
    Attempt,
    Fresh,
    IdempotencyKey,
    KeyConflict,
    Replay,
    Unanswered,
    attempt,
    once_under,
    reserve,
    tenant_transaction,
)
from storage_pg.purge import Retention, purge
from tests.storage_pg.kit import Kit

NOW = 1_900_000_000_000
VALUE = value(str, "app.value")


def key(name: str, asked: str = "body") -> IdempotencyKey:
    return IdempotencyKey(name, asked)


async def begin(kit: Kit, name: str, now: int = NOW, tenant: str | None = None) -> int:
    """The number of a new attempt."""
    found = await attempt(kit.pool, tenant or kit.tenant, key(name), now)
    assert isinstance(found, Attempt), found
    return found.number


def once(kit: Kit, name: str, number: int) -> Once:
    return once_under(kit.pool, kit.tenant, name, number)


async def test_what_a_commit_notes_is_the_answer(kit: Kit) -> None:
    storage = await kit.new_storage()
    number = await begin(kit, "noted")
    mine = once(kit, "noted", number)
    assert await mine.made(BACKGROUND) is None
    done = await storage.commit(
        [set_value(VALUE, "a"), mine.note("made"), set_value(VALUE, "b")], BACKGROUND
    )
    assert len(done.seqs) == 3
    assert await mine.made(BACKGROUND) == "made"
    assert await attempt(kit.pool, kit.tenant, key("noted"), NOW) == Replay(STANDS_FOR, "made")
    # It is no value of the session, and what comes after it counts on.
    stored = await storage.get_value(VALUE, BACKGROUND)
    assert stored is not None
    assert (stored.value, stored.seq) == ("b", done.seqs[2])
    later = await storage.commit([set_value(VALUE, "c")], BACKGROUND)
    assert later.first_seq == done.seqs[2] + 1


async def test_an_owner_that_was_fenced_out_notes_nothing(kit: Kit) -> None:
    owned = await kit.open_new()
    mine = once(kit, "fenced", await begin(kit, "fenced"))
    assert await mine.made(BACKGROUND) is None
    await kit.lease.release(owned.claimed.id)
    next_owner = await kit.sessions.open(kit.tenant, owned.claimed.id)
    with pytest.raises(LeaseLost):
        await owned.storage.commit([set_value(VALUE, "a"), mine.note("made")], BACKGROUND)
    assert await mine.made(BACKGROUND) is None
    await next_owner.storage.commit([mine.note("made by the next")], BACKGROUND)
    assert await mine.made(BACKGROUND) == "made by the next"


async def test_a_commit_that_is_refused_notes_nothing(kit: Kit) -> None:
    storage = await kit.new_storage()
    mine = once(kit, "refused", await begin(kit, "refused"))
    payload = CustomPayload(custom_type="x")
    entry = insert_entry(NewEntry(kit.environment.ids.next(), None, payload))
    with pytest.raises(StorageCorrupt):
        await storage.commit([mine.note("made"), entry, entry], BACKGROUND)
    assert await mine.made(BACKGROUND) is None


async def test_only_the_newest_attempt_may_make_anything(kit: Kit) -> None:
    first = once(kit, "newest", await begin(kit, "newest"))
    second = once(kit, "newest", await begin(kit, "newest"))
    with pytest.raises(Superseded):
        await first.made(BACKGROUND)
    assert await second.made(BACKGROUND) is None
    storage = await kit.new_storage()
    await storage.commit([second.note("made")], BACKGROUND)
    # What was made is the answer for every attempt.
    assert await first.made(BACKGROUND) == "made"


async def test_attempts_at_once_have_numbers_of_their_own(kit: Kit) -> None:
    numbers = await asyncio.gather(*(begin(kit, "at once") for _ in range(8)))
    assert sorted(numbers) == list(range(1, 9))


async def test_a_note_is_written_once(kit: Kit) -> None:
    storage = await kit.new_storage()
    mine = once(kit, "once", await begin(kit, "once"))
    await storage.commit([mine.note("first")], BACKGROUND)
    await storage.commit([mine.note("second")], BACKGROUND)
    assert await mine.made(BACKGROUND) == "first"


async def test_another_body_and_another_tenant(kit: Kit) -> None:
    number = await begin(kit, "shared")
    other = key("shared", "another body")
    assert await attempt(kit.pool, kit.tenant, other, NOW) == KeyConflict()
    stranger = kit.new_tenant()
    assert await begin(kit, "shared", tenant=stranger) == 1
    storage = await kit.new_storage()
    await storage.commit([once(kit, "shared", number).note("mine")], BACKGROUND)
    theirs = once_under(kit.pool, stranger, "shared", 1)
    assert await theirs.made(BACKGROUND) is None
    assert await attempt(kit.pool, kit.tenant, other, NOW) == KeyConflict()


async def test_a_key_lives_on_from_its_newest_attempt(kit: Kit) -> None:
    late = NOW + DAY_MS - 1
    await begin(kit, "living")
    number = await begin(kit, "living", late)
    storage = await kit.new_storage()
    await storage.commit([once(kit, "living", number).note("made")], BACKGROUND)
    found = await attempt(kit.pool, kit.tenant, key("living"), late + DAY_MS - 1)
    assert found == Replay(STANDS_FOR, "made")
    # Past its day it is a new key, for whatever body, and nobody mistakes an old attempt for its.
    again = await attempt(kit.pool, kit.tenant, key("living", "another body"), late + DAY_MS)
    assert again == Attempt(number + 1)
    with pytest.raises(Superseded):
        await once(kit, "living", number).made(BACKGROUND)


async def test_an_answer_that_was_kept_whole_is_given_again(kit: Kit) -> None:
    await begin(kit, "whole")
    async with tenant_transaction(kit.pool, kit.tenant) as connection:
        await connection.execute(
            "UPDATE laneway.idempotency_keys SET status = 202, response = '{}' WHERE key = 'whole'"
        )
    assert await attempt(kit.pool, kit.tenant, key("whole"), NOW) == Replay(202, "{}")
    with pytest.raises(Superseded):
        await once(kit, "whole", 1).made(BACKGROUND)


async def test_a_key_that_the_release_before_has_taken_is_left_to_it(kit: Kit) -> None:
    minute = IdempotencyKey("taken", "body", 60_000)
    async with tenant_transaction(kit.pool, kit.tenant) as connection:
        assert await reserve(connection, kit.tenant, minute, NOW) == Fresh()
    assert await attempt(kit.pool, kit.tenant, key("taken"), NOW + 59_999) == Unanswered()
    assert await attempt(kit.pool, kit.tenant, key("taken"), NOW + 60_000) == Attempt(1)


async def test_nothing_is_left_when_a_key_is_over(fresh_kit: Kit) -> None:
    kit = fresh_kit
    storage = await kit.new_storage()
    mine = once(kit, "over", await begin(kit, "over"))
    await storage.commit([mine.note("made")], BACKGROUND)
    keep = Retention(receipts_ms=None, expired_keys_ms=0)
    assert (await purge(kit.pool, NOW + DAY_MS, keep)).keys == 0
    assert (await purge(kit.pool, NOW + DAY_MS + 1, keep)).keys == 1
    async with tenant_transaction(kit.pool, kit.tenant) as connection:
        found = await connection.execute(
            "SELECT 1 FROM laneway.scalar_values WHERE namespace NOT LIKE 'pi.%'"
        )
        assert await found.fetchall() == []
    # A request that comes so late makes nothing: nobody could be told what.
    with pytest.raises(Superseded):
        await mine.made(BACKGROUND)
