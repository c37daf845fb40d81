"""Projects a branch into the messages a model receives, and keeps that projection growing (§2.5)."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias, assert_never, cast

from harness.context import Context
from harness.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    MessageEntry,
)
from harness.messages import (
    AgentMessage,
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    ProviderMessage,
    ToolResultMessage,
)
from harness.storage.protocol import BranchScan, Storage

EntryProjector: TypeAlias = Callable[
    [CustomEntry, Context],
    "Sequence[AgentMessage] | None | Awaitable[Sequence[AgentMessage] | None]",
]
DROPPED = frozenset({"error", "aborted", "deferred", "pending"})


def in_context(message: AgentMessage) -> bool:
    """Whether a message is part of what a model is asked: failed responses are not."""
    return not (isinstance(message, AssistantMessage) and message.stop_reason in DROPPED)


async def project_entry(
    entry: Entry, projectors: Mapping[str, EntryProjector], context: Context
) -> tuple[AgentMessage, ...]:
    """The messages that one entry contributes after it; a compaction contributes summary and tail."""
    match entry:
        case MessageEntry(message=message):
            return (message,) if in_context(message) else ()
        case CompactionEntry():
            summary = CompactionSummaryMessage(
                summary=entry.summary,
                tokens_before=entry.tokens_before,
                timestamp=entry.timestamp,
            )
            return (summary, *(m for m in entry.retained_tail if in_context(m)))
        case BranchSummaryEntry():
            return (
                BranchSummaryMessage(
                    summary=entry.summary, from_id=entry.from_id, timestamp=entry.timestamp
                ),
            )
        case CustomEntry():
            projector = projectors.get(entry.custom_type)
            if projector is None:
                return ()
            projected = projector(entry, context)
            if inspect.isawaitable(projected):
                projected = await projected
            return tuple(projected) if projected else ()
        case _:
            assert_never(entry)


async def load_context_entries(storage: Storage, leaf: str | None, context: Context) -> list[Entry]:
    """The entries from the newest compaction to the leaf, oldest first."""
    if leaf is None:
        return []
    found = await storage.scan_branch(
        BranchScan(start=leaf, order="newestFirst", stop_at_type="compaction"), context
    )
    found.reverse()
    return found


class LiveContext:
    """The projected context of a lane that this process owns: it appends, it does not rescan.

    Everything a request needs from the whole conversation is kept up to date entry by entry, so
    that a turn costs the same at any length.
    """

    __slots__ = (
        "_added_tools",
        "_alike",
        "_by_id",
        "_converted",
        "_entries",
        "_leaf",
        "_messages",
        "_projected",
        "_shown",
    )

    def __init__(self, *, empty: bool = False) -> None:
        """`empty`: the lane stands at the root, so that there is nothing to load."""
        self._leaf: str | None = None
        self._entries: list[Entry] | None = [] if empty else None
        self._reset()

    def _reset(self) -> None:
        self._by_id: dict[str, Entry] = {}
        self._messages: list[AgentMessage] = []
        self._projected = 0
        self._shown: tuple[AgentMessage, ...] = ()
        self._converted: list[ProviderMessage] = []
        # Whether every message so far is its own provider form.
        self._alike = True
        self._added_tools: list[str] = []

    def appended(self, entry: Entry) -> None:
        """Follow an entry that was just committed to the lane."""
        if self._entries is None:
            return
        if entry.parent_id != self._leaf:
            self._entries = None
            return
        if isinstance(entry, CompactionEntry):
            self._entries = []
            self._reset()
        self._entries.append(entry)
        self._by_id[entry.id] = entry
        self._leaf = entry.id

    def forget(self) -> None:
        """Drop the projection; the next use loads it again (after a navigation)."""
        self._entries = None

    async def entries(self, storage: Storage, leaf: str | None, context: Context) -> list[Entry]:
        """The entries of the context at `leaf`, oldest first. Callers must not change the list."""
        if self._entries is None or self._leaf != leaf:
            loaded = await load_context_entries(storage, leaf, context)
            self._reset()
            self._entries = loaded
            self._by_id = {entry.id: entry for entry in loaded}
            self._leaf = leaf
        return self._entries

    async def find(
        self, storage: Storage, leaf: str | None, ids: Sequence[str], context: Context
    ) -> dict[str, Entry]:
        """The entries of `ids` that are part of the context at `leaf`."""
        await self.entries(storage, leaf, context)
        return {entry_id: self._by_id[entry_id] for entry_id in ids if entry_id in self._by_id}

    async def messages(
        self,
        storage: Storage,
        leaf: str | None,
        projectors: Mapping[str, EntryProjector],
        context: Context,
    ) -> tuple[AgentMessage, ...]:
        """The messages a request at `leaf` is built from."""
        entries = await self.entries(storage, leaf, context)
        if self._projected < len(entries):
            for entry in entries[self._projected :]:
                for message in await project_entry(entry, projectors, context):
                    self._messages.append(message)
                    if isinstance(message, ToolResultMessage) and message.added_tool_names:
                        self._added_tools += message.added_tool_names
            self._projected = len(entries)
            self._shown = tuple(self._messages)
        return self._shown

    @property
    def added_tools(self) -> Sequence[str]:
        """Tools that results in the projected messages made active."""
        return self._added_tools

    def converted(
        self,
        messages: tuple[AgentMessage, ...],
        convert: Callable[[tuple[AgentMessage, ...]], tuple[ProviderMessage, ...]],
    ) -> tuple[ProviderMessage, ...]:
        """The messages in provider form, by a conversion that takes each message for itself."""
        if messages is not self._shown:
            return convert(messages)
        done = len(self._converted)
        if done < len(messages):
            fresh = messages[done:]
            forms = convert(fresh)
            same = len(forms) == len(fresh) and all(map(operator.is_, forms, fresh))
            self._alike = self._alike and same
            self._converted += forms
        if self._alike:
            # The same objects: a second copy of a long conversation for each request is spared. The
            # cast says what the comparison has shown.
            return cast("tuple[ProviderMessage, ...]", messages)
        return tuple(self._converted)
