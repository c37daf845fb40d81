"""How many operations one process drives at once, and which tenant gets a place that becomes free (design §6)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable


class Slot:
    """A place to drive one operation in: asked for, later granted, given back in either case."""

    __slots__ = ("_slots", "call", "granted", "over", "tenant_id", "turn")

    def __init__(
        self, slots: Slots, tenant_id: str, call: Callable[[], None] | None, turn: int
    ) -> None:
        self._slots = slots
        self.tenant_id = tenant_id
        self.call = call
        self.turn = turn
        self.granted = False
        self.over = False

    def give_back(self) -> None:
        """Leave the place, or the line of those who wait for one. Idempotent."""
        self._slots.give_back(self)


class Slots:
    """The places of one process. A free one goes to the tenant that has the fewest here, and among
    a tenant's requests to the oldest: one request waits for one place to become free at the most,
    however many another tenant has made before it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._turns = 0
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[Slot]] = {}

    @property
    def free(self) -> int:
        """How many more operations may be driven."""
        return self.size - self.used

    def ask(self, tenant_id: str, call: Callable[[], None] | None = None) -> Slot:
        """Ask for a place. It may be granted at once; otherwise `call` is called when it is."""
        self._turns += 1
        slot = Slot(self, tenant_id, call, self._turns)
        self._waiting.setdefault(tenant_id, deque()).append(slot)
        self._serve(asking=slot)
        return slot

    def give_back(self, slot: Slot) -> None:
        """See `Slot.give_back`."""
        if slot.over:
            return
        slot.over = True
        if slot.granted:
            self.used -= 1
            self._running[slot.tenant_id] -= 1
            if not self._running[slot.tenant_id]:
                del self._running[slot.tenant_id]
        self._serve()

    def _serve(self, asking: Slot | None = None) -> None:
        while self.used < self.size and (slot := self._next()) is not None:
            slot.granted = True
            self.used += 1
            self._running[slot.tenant_id] += 1
            if slot is not asking and slot.call is not None:
                slot.call()

    def _next(self) -> Slot | None:
        """Take the next request out of the line."""
        best: deque[Slot] | None = None
        for tenant, line in list(self._waiting.items()):
            while line and line[0].over:
                line.popleft()
            if not line:
                del self._waiting[tenant]
            elif best is None or self._rank(line[0]) < self._rank(best[0]):
                best = line
        return None if best is None else best.popleft()

    def _rank(self, slot: Slot) -> tuple[int, int]:
        return self._running[slot.tenant_id], slot.turn


class TenantLines:
    """Who waits until a tenant has fewer operations under way than its limit, all hosts together.
    Each end of a pass here calls one of them; ends elsewhere are for whoever waits to look for."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[Callable[[], None], None]] = {}

    def wait(self, tenant_id: str, call: Callable[[], None]) -> None:
        """Be called at the next end, after those who came before."""
        self._waiting.setdefault(tenant_id, {})[call] = None

    def leave(self, tenant_id: str, call: Callable[[], None]) -> None:
        """Wait no longer. Nothing happens when it does not wait."""
        line = self._waiting.get(tenant_id)
        if line is not None:
            line.pop(call, None)
            if not line:
                del self._waiting[tenant_id]

    def ended(self, tenant_id: str) -> None:
        """A pass of the tenant ended here."""
        line = self._waiting.get(tenant_id)
        if line is None:
            return
        call = next(iter(line))
        del line[call]
        if not line:
            del self._waiting[tenant_id]
        call()
