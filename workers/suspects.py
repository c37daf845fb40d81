"""Whose turn it is among the suspects of one process: operations that hosts died under are driven one at a time (design §6)."""

from __future__ import annotations

from collections.abc import Callable

from harness.clock import Clock

# Whoever is first in the line has the turn to itself for so long after it is free (milliseconds); then
# it is for anybody, because the first may have no place to be driven in.
_FIRST_MS = 100


class Turn:
    """A suspect's turn to be driven: asked for, begun, given back in either case."""

    __slots__ = ("_suspects", "call", "tenant_id")

    def __init__(self, suspects: Suspects, tenant_id: str, call: Callable[[], None]) -> None:
        self._suspects = suspects
        self.tenant_id = tenant_id
        self.call = call

    @property
    def opens_at(self) -> int:
        """From when it may be begun, as far as is known now (Unix ms)."""
        return self._suspects.opens_at(self)

    def begin(self) -> None:
        """Begin it, which makes the others wait. It must be open."""
        self._suspects.begin(self)

    def give_back(self) -> None:
        """End it, or leave the line. Idempotent."""
        self._suspects.give_back(self)


class Suspects:
    """The line of one process. Tenants take turns, and among a tenant's own whoever asked first. A turn
    that has lasted `alone_ms` keeps nobody waiting any more: what has not killed its host by then is
    probably not what kills hosts."""

    def __init__(self, clock: Clock, alone_ms: int) -> None:
        self._clock = clock
        self._alone_ms = alone_ms
        self._lines: dict[str, dict[Turn, None]] = {}
        self._latest: Turn | None = None
        self._free_at = 0

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return sum(map(len, self._lines.values()))

    def ask(self, tenant_id: str, call: Callable[[], None]) -> Turn:
        """Join the line. `call` is called when it is this one's turn earlier than `opens_at` said."""
        turn = Turn(self, tenant_id, call)
        self._lines.setdefault(tenant_id, {})[turn] = None
        return turn

    def opens_at(self, turn: Turn) -> int:
        """See `Turn.opens_at`."""
        return self._free_at + (0 if turn is self._first() else _FIRST_MS)

    def begin(self, turn: Turn) -> None:
        """See `Turn.begin`."""
        self._leave(turn)
        # The tenant goes behind the others.
        rest = self._lines.pop(turn.tenant_id, None)
        if rest is not None:
            self._lines[turn.tenant_id] = rest
        self._latest = turn
        self._free_at = self._clock.now_ms() + self._alone_ms

    def give_back(self, turn: Turn) -> None:
        """See `Turn.give_back`."""
        self._leave(turn)
        if turn is not self._latest:
            return
        self._latest = None
        self._free_at = min(self._free_at, self._clock.now_ms())
        first = self._first()
        if first is not None:
            first.call()

    def _first(self) -> Turn | None:
        return next((next(iter(line)) for line in self._lines.values()), None)

    def _leave(self, turn: Turn) -> None:
        line = self._lines.get(turn.tenant_id)
        if line is not None:
            line.pop(turn, None)
            if not line:
                del self._lines[turn.tenant_id]
