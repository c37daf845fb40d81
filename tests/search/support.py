"""Conversations to be found, and how tests ask for them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.entries import CustomPayload, EntryPayload, MessagePayload, NewEntry
from harness.ids import Uuid7Generator
from harness.messages import AssistantMessage, TextContent, ToolCall, UserMessage
from harness.operation import values
from harness.search.service import EntryHit, SearchQuery, SearchService, SessionHit
from harness.session.session import Session
from harness.storage.writes import Write, insert_entry, set_value
from harness.usage import ZERO_USAGE

IDS = Uuid7Generator(SystemClock(), random.SystemRandom())


def user(text: str) -> MessagePayload:
    """Something the user said."""
    return MessagePayload(message=UserMessage(content=text, timestamp=1))


def assistant(text: str) -> MessagePayload:
    """An answer with a tool call, whose arguments are not searchable."""
    return MessagePayload(
        message=AssistantMessage(
            content=(
                TextContent(text=text),
                ToolCall(id="c1", name="lookup", arguments={"secret": "zanzibar"}),
            ),
            api="scripted",
            provider="scripted",
            model="m",
            usage=ZERO_USAGE,
            stop_reason="toolUse",
            timestamp=2,
        )
    )


def custom(data: str) -> CustomPayload:
    """An application's entry, which is opaque."""
    return CustomPayload(custom_type="note", data=data)


async def say(session: Session, *said: str | EntryPayload) -> list[str]:
    """Append to the main lane, one commit each; returns the entries' ids."""
    leaf = await session.storage.get_value(values.lane_leaf("main"), BACKGROUND)
    assert leaf is not None
    parent, made = leaf.value, list[str]()
    for one in said:
        entry_id = IDS.next()
        payload = user(one) if isinstance(one, str) else one
        writes: list[Write] = [
            insert_entry(NewEntry(id=entry_id, parent_id=parent, payload=payload)),
            set_value(values.lane_leaf("main"), entry_id),
        ]
        await session.storage.commit(writes, BACKGROUND)
        parent = entry_id
        made.append(entry_id)
    return made


async def sessions_for(search: SearchService, text: str, limit: int = 20) -> list[SessionHit]:
    """Sessions found."""
    return await search.search_sessions(SearchQuery(text=text, limit=limit), BACKGROUND)


async def entries_for(
    search: SearchService, text: str, *, types: Sequence[str] | None = None, limit: int = 20
) -> list[EntryHit]:
    """Entries found."""
    query = SearchQuery(text=text, limit=limit, entry_types=types)  # pyright: ignore[reportArgumentType]  # tests spell types freely
    return [hit async for hit in search.search_entries(query, BACKGROUND)]


async def found(search: SearchService, text: str) -> set[str]:
    """The ids of all entries found."""
    return {hit.entry_id for hit in await entries_for(search, text, limit=1_000)}
