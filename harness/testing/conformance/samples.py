"""Messages, entries, ledger rows and trees that the conformance suite writes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from harness.clock import SystemClock
from harness.codec import JsonValue
from harness.entries import (
    BranchSummaryPayload,
    CompactionPayload,
    CustomPayload,
    EntryPayload,
    MessagePayload,
    NewEntry,
)
from harness.ids import Uuid7Generator
from harness.messages import AssistantMessage, TextContent, ToolCall, UserMessage
from harness.usage import NewUsageRow, Usage, UsageCost


class Samples:
    """Makes valid, distinct content from a seed; `ids` are real UUIDv7s."""

    def __init__(self, seed: int = 7) -> None:
        self.rng = random.Random(seed)
        self.ids = Uuid7Generator(SystemClock(), random.Random(seed))
        self._count = 0

    def new_id(self) -> str:
        """A fresh id."""
        return self.ids.next()

    def user(self, text: str | None = None) -> MessagePayload:
        """A user message; numbered when no text is given."""
        self._count += 1
        return MessagePayload(
            message=UserMessage(
                content=f"message {self._count}" if text is None else text, timestamp=1
            )
        )

    def assistant(self, text: str = "answer") -> MessagePayload:
        """A settled assistant message with text and a tool call."""
        return MessagePayload(
            message=AssistantMessage(
                content=(
                    TextContent(text=text),
                    ToolCall(
                        id="call-1", name="lookup", arguments={"deep": {"list": [1, None, "x"]}}
                    ),
                ),
                api="scripted",
                provider="scripted",
                model="m",
                usage=self.usage(),
                stop_reason="toolUse",
                timestamp=2,
            )
        )

    def compaction(self) -> CompactionPayload:
        """A compaction with a retained tail."""
        return CompactionPayload(
            summary="so far",
            retained_tail=(UserMessage(content="kept", timestamp=3),),
            tokens_before=1_234,
            from_hook=False,
            details={"files": ["a", "b"]},
        )

    def branch_summary(self, from_id: str | None) -> BranchSummaryPayload:
        """A summary of the branch that was left at `from_id`."""
        return BranchSummaryPayload(from_id=from_id, summary="left", from_hook=True)

    def custom(self, custom_type: str, data: JsonValue = None) -> CustomPayload:
        """An application entry; without data the field is absent."""
        return (
            CustomPayload(custom_type=custom_type)
            if data is None
            else CustomPayload(custom_type=custom_type, data=data)
        )

    def usage(self) -> Usage:
        """A usage whose costs are sums of powers of two, so that totals are exact in any order."""
        tokens = self.rng.randrange(1, 1_000)
        cost = self.rng.randrange(1, 64) / 64
        return Usage(
            input=tokens,
            output=tokens * 2,
            cache_read=3,
            cache_write=1,
            total_tokens=tokens * 3 + 4,
            cost=UsageCost(input=cost, output=cost * 2, total=cost * 3),
        )

    def row(self, *, entry_id: str | None = None, adjustment: bool = False) -> NewUsageRow:
        """A ledger row."""
        return NewUsageRow(
            id=self.new_id(), usage=self.usage(), entry_id=entry_id, adjustment=adjustment
        )

    def entry(self, parent_id: str | None, payload: EntryPayload | None = None) -> NewEntry:
        """An entry below `parent_id`; a numbered user message when no payload is given."""
        return NewEntry(id=self.new_id(), parent_id=parent_id, payload=payload or self.user())

    def chain(self, parent_id: str | None, length: int) -> list[NewEntry]:
        """Entries in one line below `parent_id`."""
        entries: list[NewEntry] = []
        for _ in range(length):
            entry = self.entry(parent_id)
            entries.append(entry)
            parent_id = entry.id
        return entries

    def tree(self, size: int, *, compactions: float = 0.1, jumps: float = 0.25) -> list[NewEntry]:
        """A random tree of every entry type, in an order in which it can be written.

        Mostly it grows at its newest entry; sometimes it goes on from any older one, or from a
        new root.
        """
        entries: list[NewEntry] = []
        leaf: str | None = None
        for _ in range(size):
            if entries and self.rng.random() < jumps:
                leaf = self.rng.choice([*(entry.id for entry in entries), None])
            entry = self.entry(leaf, self._any_payload(entries, compactions))
            entries.append(entry)
            leaf = entry.id
        return entries

    def _any_payload(self, entries: Sequence[NewEntry], compactions: float) -> EntryPayload:
        draw = self.rng.random()
        if draw < compactions:
            return self.compaction()
        if draw < compactions + 0.1:
            return self.branch_summary(self.rng.choice(entries).id if entries else None)
        if draw < compactions + 0.3:
            return self.custom(self.rng.choice(("note", "mark")), self.rng.choice((None, {"n": 1})))
        return self.user() if draw < compactions + 0.6 else self.assistant()
