"""Pauses grow to a limit, differ between processes, and begin again after a success."""

from __future__ import annotations

import random

from storage_pg.backoff import Backoff


def test_pauses_grow_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 1.0, random.Random(1))
    pauses = [backoff.pause() for _ in range(200)]
    for pause, middle in zip(pauses[:4], (0.1, 0.2, 0.4, 0.8), strict=True):
        assert middle * 0.5 <= pause < middle * 1.5
    assert all(0.5 <= pause < 1.5 for pause in pauses[4:])
    # Spread over the whole range, not only around it.
    assert min(pauses[4:]) < 0.6
    assert max(pauses[4:]) > 1.4


def test_processes_that_fail_together_do_not_try_together() -> None:
    ways = [Backoff(0.1, 5.0, random.Random(seed)) for seed in range(20)]
    for _ in range(5):
        assert len({way.pause() for way in ways}) == 20


def test_a_success_begins_again() -> None:
    backoff = Backoff(0.1, 5.0, random.Random(1))
    for _ in range(10):
        backoff.pause()
    backoff.reset()
    assert backoff.pause() < 0.15
