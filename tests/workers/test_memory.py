"""What a process has loaded when it is ready is not looked at by later collections."""

from __future__ import annotations

import gc

from workers.memory import settle


def test_what_is_loaded_is_left_alone_and_what_comes_later_is_collected() -> None:
    loaded: list[object] = []
    loaded.append(loaded)
    try:
        settle()
        assert gc.get_freeze_count() > 10_000
        assert not any(thing is loaded for thing in gc.get_objects())
        later: list[object] = []
        later.append(later)
        del later
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()
