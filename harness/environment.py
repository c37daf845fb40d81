"""The injected sources of nondeterminism: clock, ids and randomness, bundled for one process."""

from __future__ import annotations

import random
from dataclasses import dataclass

from harness.clock import Clock, SystemClock
from harness.ids import IdGenerator, Uuid7Generator


@dataclass(frozen=True, slots=True)
class Environment:
    """What the harness may not invent by itself."""

    clock: Clock
    ids: IdGenerator
    rng: random.Random

    @staticmethod
    def system() -> Environment:
        """The machine's clock and operating-system randomness."""
        clock = SystemClock()
        return Environment(clock=clock, ids=Uuid7Generator(clock), rng=random.SystemRandom())
