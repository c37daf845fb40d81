"""How long to wait before trying again: longer each time, and no two processes alike."""

from __future__ import annotations

import random


class Backoff:
    """Pauses in seconds: doubled from `first` up to `longest`, each by a random half more or less, so
    that a fleet that lost its database together does not come back to it together."""

    def __init__(self, first: float, longest: float, rng: random.Random) -> None:
        self._first = first
        self._longest = longest
        self._rng = rng
        self._next = first

    def pause(self) -> float:
        """The next pause."""
        pause = self._next * (0.5 + self._rng.random())
        self._next = min(self._next * 2, self._longest)
        return pause

    def reset(self) -> None:
        """It worked: begin from the start the next time."""
        self._next = self._first
