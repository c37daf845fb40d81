"""Reads legacy coding-agent sessions (JSONL format 3) as if they had always been ours (Appendix B).

Opening changes nothing in the file: the content is normalized in memory, under ids that are the same
at every opening. The first write replaces the file by a format 4 one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from harness.codec import encode_str, foreign_json
from harness.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    MessageEntry,
)
from harness.errors import StorageCorrupt
from harness.ids import compose_uuid7
from harness.messages import (
    AgentMessage,
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    ToolResultMessage,
)
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.session.legacy_messages import (
    Fields,
    as_fields,
    legacy_custom,
    legacy_message,
    legacy_usage,
    with_remapped_from,
)
from harness.session.session import MAIN_LANE
from harness.storage.jsonl_file import LiveBytes, LoadedFile
from harness.storage.memory import MemoryState
from harness.storage.memory_copy import restore
from harness.storage.metadata import SessionMetadata
from harness.storage.records import ValueRecord
from harness.usage import ZERO_USAGE, SessionStats, Usage, UsageRow, add_usage

_DISCARDED = frozenset(
    {"label", "session_info", "model_change", "thinking_level_change", "active_tools_change"}
)
_TAIL_BITS = 74


def is_legacy(path: Path) -> bool:
    """Whether the file begins like a legacy session."""
    with path.open("rb") as file:
        first = file.readline()
    return b'"session"' in first and _header_of(first) is not None


def legacy_metadata(path: Path) -> SessionMetadata:
    """The metadata of a legacy file; raises `StorageCorrupt` when it is none that can be read."""
    with path.open("rb") as file:
        header = _header_of(file.readline())
    if header is None or not isinstance(header.get("id"), str):
        raise StorageCorrupt(f"{path}: line 1 at byte 0 is no session header")
    version = header.get("version", 1)
    if version not in (2, 3):
        # Format 1 has no tree; the program that wrote it converts it when it opens it.
        raise StorageCorrupt(f"{path}: line 1 at byte 0 has legacy format {version}, not 3")
    parent = header.get("parentSession")
    parent_id = _parent_id(path, parent) if isinstance(parent, str) else None
    return SessionMetadata(
        id=cast("str", header["id"]),
        created_at=_milliseconds(header.get("timestamp"), 0),
        cwd=header["cwd"] if isinstance(header.get("cwd"), str) else None,
        parent_session_id=parent_id,
        legacy_parent_session_path=parent if isinstance(parent, str) and not parent_id else None,
    )


def load_legacy(path: Path) -> LoadedFile:
    """The session as maps, with the record that its first write must add.

    Raises `StorageCorrupt` with line and byte offset for damage anywhere but in the last line.
    """
    metadata = legacy_metadata(path)
    reader = _Normalizer(path, metadata)
    nodes = [node for node in _nodes(path) if node is not None]
    for node in nodes:
        reader.remember(node)
    state = reader.finish(nodes)
    size = path.stat().st_size
    return LoadedFile(
        metadata,
        state,
        LiveBytes(total=size),
        size,
        size,
        first_write_adds=UsageRow(
            id=_stable_id(metadata, "v3-import", metadata.created_at),
            seq=state.next_seq,
            usage=state.stats.usage,
            adjustment=True,
            details={"source": "v3-import"},
        ),
    )


class _Node:
    """One line of the legacy tree."""

    __slots__ = ("fields", "id", "parent", "timestamp", "type")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.type: str = fields["type"]
        self.id: str = fields["id"]
        self.parent: str | None = fields.get("parentId")
        self.timestamp = _milliseconds(fields.get("timestamp"), 0)


def _nodes(path: Path) -> Iterator[_Node | None]:
    size = path.stat().st_size
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}: line {number} at byte {offset}"
            offset += len(line)
            if number == 1 or not line.strip():
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                if offset >= size:
                    return  # torn
                raise StorageCorrupt(f"{place} is not JSON") from error
            fields = as_fields(found) or {}
            if not isinstance(fields.get("type"), str) or not isinstance(fields.get("id"), str):
                raise StorageCorrupt(f"{place} is no entry")
            yield _Node(fields)


class _Normalizer:
    """Turns legacy nodes into entries and values."""

    def __init__(self, path: Path, metadata: SessionMetadata) -> None:
        self._path = path
        self._metadata = metadata
        self._nodes: dict[str, _Node] = {}
        # The entry that stands for each node: itself, or its nearest retained ancestor.
        self._entry_of: dict[str, str | None] = {}
        self._messages: dict[str, AgentMessage | None] = {}

    def remember(self, node: _Node) -> None:
        """Register a node after its parent."""
        if node.id in self._nodes:
            raise StorageCorrupt(f"{self._path}: entry {node.id} is there twice")
        if node.parent is not None and node.parent not in self._nodes:
            raise StorageCorrupt(
                f"{self._path}: entry {node.id} names missing parent {node.parent}"
            )
        self._nodes[node.id] = node
        if node.type in _DISCARDED:
            self._entry_of[node.id] = self._resolve(node.parent)
        else:
            self._entry_of[node.id] = _stable_id(self._metadata, node.id, node.timestamp)

    def _resolve(self, node_id: str | None) -> str | None:
        return None if node_id is None else self._entry_of[node_id]

    def finish(self, nodes: list[_Node]) -> MemoryState:
        """The maps of the whole session."""
        state = MemoryState()
        labels: dict[str, str] = {}
        name: str | None = None
        usage = ZERO_USAGE
        for node in nodes:
            match node.type:
                case "label":
                    self._label(node, labels)
                case "session_info":
                    given = node.fields.get("name")
                    name = given if isinstance(given, str) and given else None
                case type_ if type_ in _DISCARDED:
                    continue
                case _:
                    entry = self._entry(node, state.next_seq)
                    restore(state, entry)
                    usage = add_usage(usage, _usage_of(entry))
        leaf = self._resolve(nodes[-1].id) if nodes else None
        found = [
            (values.lane_leaf(MAIN_LANE), leaf),
            (values.lane_state(MAIN_LANE), IDLE_LANE),
            *((values.entry_label(target), label) for target, label in labels.items()),
            *([] if name is None else [(values.SESSION_NAME, name)]),
        ]
        for address, stored in found:
            record = ValueRecord(state.next_seq, address.namespace, address.key, encode_str(stored))
            restore(state, record)
        state.stats = SessionStats(message_count=state.stats.message_count, usage=usage)
        return state

    def _label(self, node: _Node, labels: dict[str, str]) -> None:
        target = node.fields.get("targetId")
        entry_id = self._entry_of.get(target) if isinstance(target, str) else None
        if entry_id is None:
            return
        label = node.fields.get("label")
        labels.pop(entry_id, None)
        if isinstance(label, str) and label:
            labels[entry_id] = label

    def _entry(self, node: _Node, seq: int) -> Entry:
        fields = node.fields
        placed: dict[str, Any] = {
            "seq": seq,
            "timestamp": node.timestamp,
            "id": self._entry_of[node.id],
            "parent_id": self._resolve(node.parent),
        }
        match node.type:
            case "message" | "custom_message":
                message = self._message(node)
                if message is None:
                    return CustomEntry(
                        **placed,
                        custom_type="bashExecution",
                        data=foreign_json(fields.get("message")),
                    )
                return MessageEntry(**placed, message=message)
            case "compaction":
                return CompactionEntry(
                    **placed,
                    summary=str(fields.get("summary", "")),
                    retained_tail=self._retained_tail(node),
                    tokens_before=int(fields.get("tokensBefore") or 0),
                    from_hook=fields.get("fromHook") is True,
                    details=foreign_json(fields.get("details")),
                    usage=legacy_usage(fields.get("usage")),
                )
            case "branch_summary":
                left = fields.get("fromId")
                return BranchSummaryEntry(
                    **placed,
                    from_id=self._entry_of.get(left) if isinstance(left, str) else None,
                    summary=str(fields.get("summary", "")),
                    from_hook=fields.get("fromHook") is True,
                    details=foreign_json(fields.get("details")),
                    usage=legacy_usage(fields.get("usage")),
                )
            case "custom":
                custom_type = str(fields.get("customType") or "unknown")
                if "data" not in fields:
                    return CustomEntry(**placed, custom_type=custom_type)
                return CustomEntry(
                    **placed, custom_type=custom_type, data=foreign_json(fields["data"])
                )
            case other:
                # Something newer than this description of the format: kept, and out of context.
                return CustomEntry(**placed, custom_type=f"v3:{other}", data=foreign_json(fields))

    def _message(self, node: _Node) -> AgentMessage | None:
        """What a node says in context, with its references remapped; None for nothing."""
        if node.id not in self._messages:
            self._messages[node.id] = self._convert(node)
        return self._messages[node.id]

    def _convert(self, node: _Node) -> AgentMessage | None:
        fields = node.fields
        match node.type:
            case "message":
                message = fields.get("message")
                found = legacy_message(as_fields(message) or {}, node.timestamp)
                return None if found is None else with_remapped_from(found, self._entry_of)
            case "custom_message":
                return legacy_custom(fields, node.timestamp)
            case "compaction":
                return CompactionSummaryMessage(
                    summary=str(fields.get("summary", "")),
                    tokens_before=int(fields.get("tokensBefore") or 0),
                    timestamp=node.timestamp,
                )
            case "branch_summary":
                left = fields.get("fromId")
                return BranchSummaryMessage(
                    summary=str(fields.get("summary", "")),
                    from_id=self._entry_of.get(left) if isinstance(left, str) else None,
                    timestamp=node.timestamp,
                )
            case _:
                return None

    def _retained_tail(self, node: _Node) -> tuple[AgentMessage, ...]:
        """What the compaction kept: given outright, or everything on its own branch from the first
        kept node on."""
        given = node.fields.get("retainedTail")
        if isinstance(given, list):
            parts = [as_fields(part) or {} for part in cast("list[object]", given)]
            found = [legacy_message(part, node.timestamp) for part in parts]
            return tuple(
                with_remapped_from(one, self._entry_of) for one in found if one is not None
            )
        first = node.fields.get("firstKeptEntryId")
        tail: list[AgentMessage] = []
        current = node.parent
        while current is not None:
            ancestor = self._nodes[current]
            message = self._message(ancestor)
            if message is not None:
                tail.append(message)
            if current == first:
                return tuple(reversed(tail))
            current = ancestor.parent
        # The first kept node is not on this branch: nothing can be said to have been kept.
        return ()


def _usage_of(entry: Entry) -> Usage:
    match entry:
        case MessageEntry(message=AssistantMessage(usage=usage)):
            return usage
        case MessageEntry(message=ToolResultMessage(usage=usage)) | (
            CompactionEntry(usage=usage) | BranchSummaryEntry(usage=usage)
        ):
            return usage or ZERO_USAGE
        case _:
            return ZERO_USAGE


def _stable_id(metadata: SessionMetadata, legacy_id: str, timestamp: int) -> str:
    """The UUIDv7 of a legacy node: its own time, and a tail that is the same at every opening."""
    digest = hashlib.sha256(f"{metadata.id}\n{legacy_id}".encode("utf-8", "surrogatepass")).digest()
    return compose_uuid7(timestamp, int.from_bytes(digest) >> (256 - _TAIL_BITS))


def _header_of(line: bytes) -> Fields | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    fields = as_fields(found) or {}
    return fields if fields.get("type") == "session" else None


def _parent_id(path: Path, parent: str) -> str | None:
    """The id in the parent's header, where it was or beside this file."""
    for candidate in (Path(parent), path.with_name(Path(parent).name)):
        try:
            with candidate.open("rb") as file:
                header = json.loads(file.readline())
        except (OSError, ValueError):
            continue
        found = (as_fields(header) or {}).get("id")
        if isinstance(found, str):
            return found
    return None


def _milliseconds(timestamp: object, default: int) -> int:
    if isinstance(timestamp, int | float):
        return int(timestamp)
    if isinstance(timestamp, str):
        try:
            return round(datetime.fromisoformat(timestamp).timestamp() * 1_000)
        except ValueError:
            return default
    return default
