"""Whom an API process asks to take a new operation."""

from __future__ import annotations

import asyncio
import random

from harness.errors import StorageError
from harness.testing.virtual_clock import VirtualClock
from storage_pg.open_operations import SessionOwner
from workers.placement import Placement


def worker(number: int) -> SessionOwner:
    return SessionOwner(f"host-{number}", "worker", f"http://{number}")


A, B, C = worker(1), worker(2), worker(3)


class Known:
    """The list that the database would give."""

    def __init__(self, *workers: SessionOwner) -> None:
        self.workers = list(workers)
        self.looks = 0
        self.fails = False
        self.clock = VirtualClock()
        self.placement = Placement(self.list, self.clock, random.Random(1))

    async def list(self) -> list[SessionOwner]:
        self.looks += 1
        if self.fails:
            raise StorageError("not now")
        await asyncio.sleep(0)
        return list(self.workers)


async def test_whoever_is_asked_the_least_is_next() -> None:
    known = Known(A, B, C)
    placement = known.placement
    with placement.asking(A), placement.asking(B):
        assert await placement.choose("s") == C
        with placement.asking(C), placement.asking(C):
            assert {await placement.choose(str(n)) for n in range(50)} == {A, B}
    assert {await placement.choose(str(n)) for n in range(50)} == {A, B, C}


async def test_a_session_goes_where_it_was() -> None:
    known = Known(A, B, C)
    placement = known.placement
    placement.took(B, "s")
    with placement.asking(B), placement.asking(B):
        assert await placement.choose("s") == B
    placement.rest(B, 1.0)
    assert await placement.choose("s") in (A, C)
    known.clock.advance(1.5)
    assert await placement.choose("s") == B
    placement.forget("s")
    with placement.asking(B):
        assert await placement.choose("s") in (A, C)


async def test_nobody_is_asked_who_is_not_there() -> None:
    known = Known()
    placement = known.placement
    assert await placement.choose("s") is None
    known.workers = [A]
    assert await placement.choose("s") is None, "a list is good for a while"
    known.clock.advance(1.5)
    assert await placement.choose("s") == A
    placement.rest(A, 5.0)
    assert await placement.choose("s") is None
    placement.took(A, "s")
    known.workers = [B]
    known.clock.advance(10.0)
    assert await placement.choose("s") == B


async def test_the_list_is_asked_for_once_and_may_fail() -> None:
    known = Known(A)
    placement = known.placement
    found = await asyncio.gather(*(placement.choose("s") for _ in range(20)))
    assert set(found) == {A}
    assert known.looks == 1
    known.fails = True
    known.clock.advance(1.5)
    assert await placement.choose("s") is None
    known.fails = False
    known.clock.advance(1.5)
    assert await placement.choose("s") == A
