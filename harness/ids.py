"""UUIDv7 ids: minted from the injected clock, monotonic within a generator, with followers (§1.2)."""

from __future__ import annotations

import random
import uuid
from typing import Protocol

from harness.clock import Clock
from harness.errors import InvalidArgument

_TAIL_BITS = 74
_TAIL_MAX = (1 << _TAIL_BITS) - 1
_TIME_MAX = (1 << 48) - 1
_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62


class IdGenerator(Protocol):
    """Mints the ids of entries, usage rows, operations and steps."""

    def next(self, timestamp_ms: int | None = None) -> str:
        """A new UUIDv7. With `timestamp_ms` the id is a follower: it carries that time prefix."""
        ...


def compose_uuid7(timestamp_ms: int, tail: int) -> str:
    """The canonical lower-case UUIDv7 with this 48-bit time prefix and 74-bit tail."""
    bits = (
        ((timestamp_ms & _TIME_MAX) << 80)
        | _VERSION
        | ((tail >> 62) << 64)
        | _VARIANT
        | (tail & ((1 << 62) - 1))
    )
    return str(uuid.UUID(int=bits))


def timestamp_of(entity_id: str) -> int:
    """The mint time in Unix milliseconds that a UUIDv7 carries in its prefix."""
    return int(entity_id[0:8] + entity_id[9:13], 16)


def parse_uuid7(text: str) -> str:
    """The canonical form of a caller-supplied UUIDv7; raises `InvalidArgument` for anything else."""
    try:
        parsed = uuid.UUID(text)
    except ValueError as error:
        raise InvalidArgument(f"not a UUID: {text!r}") from error
    if parsed.version != 7:
        raise InvalidArgument(f"not a version 7 UUID: {text!r}")
    return str(parsed)


class Uuid7Generator:
    """Ids that never go back: within one millisecond, or when the clock steps back, the tail counts up."""

    def __init__(self, clock: Clock, rng: random.Random | None = None) -> None:
        self._clock = clock
        self._rng = rng if rng is not None else random.SystemRandom()
        self._last_ms = 0
        self._last_tail = 0

    def next(self, timestamp_ms: int | None = None) -> str:
        if timestamp_ms is not None:
            return compose_uuid7(timestamp_ms, self._rng.getrandbits(_TAIL_BITS))
        now = self._clock.now_ms()
        if now > self._last_ms:
            self._last_ms = now
            # The top bit starts clear so that counting up has room within the millisecond.
            self._last_tail = self._rng.getrandbits(_TAIL_BITS - 1)
        else:
            self._last_tail += 1 + self._rng.getrandbits(16)
            if self._last_tail > _TAIL_MAX:
                self._last_ms += 1
                self._last_tail = self._rng.getrandbits(_TAIL_BITS - 1)
        return compose_uuid7(self._last_ms, self._last_tail)
