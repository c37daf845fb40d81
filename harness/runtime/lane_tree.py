"""The session tree as seen through a lane that a harness owns: writes obey the operation (§5.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from harness.codec import JsonValue
from harness.context import Context
from harness.entries import MessagePayload
from harness.errors import InvalidArgument
from harness.messages import AgentMessage
from harness.operation.events import HarnessEvent, ValueUpdate
from harness.operation.step import LaneProjection, Step
from harness.runtime.inbox import append
from harness.runtime.lane import Commit, Decision, Lane
from harness.session.once import Once
from harness.session.session import SessionMutator
from harness.session.tree import (
    TreeReads,
    check_appendable,
    custom_payload,
    label_write,
    name_write,
)
from harness.storage.address import Address, Value, ValueList
from harness.storage.writes import Write, append_list, delete_list, delete_value, set_value

T = TypeVar("T")


class LaneTree(TreeReads):
    """Reads of committed data, and writes through the owning lane."""

    def __init__(self, lane: Lane) -> None:
        super().__init__(lane.core.session, lane.name)
        self._owner = lane

    async def set_value(self, address: Value[T], next_value: T, context: Context) -> None:
        """Replace an application value; raises `InvalidArgument` for a reserved namespace."""
        _check(address)
        await self._write(lambda: (set_value(address, next_value), None), context)

    async def delete_value(self, address: Value[T], context: Context) -> None:
        """Remove an application value."""
        _check(address)
        await self._write(lambda: (delete_value(address), None), context)

    async def append_list(self, address: ValueList[T], element: T, context: Context) -> None:
        """Append to an application list."""
        _check(address)
        await self._write(lambda: (append_list(address, element), None), context)

    async def delete_list(self, address: ValueList[T], context: Context) -> None:
        """Remove an application list."""
        _check(address)
        await self._write(lambda: (delete_list(address), None), context)

    async def set_name(self, name: str | None, context: Context) -> None:
        """Set or remove the session's name."""
        event = ValueUpdate(value="session_name", name=name)
        await self._write(lambda: (name_write(name), event), context)

    async def set_label(self, target_id: str, label: str | None, context: Context) -> None:
        """Set or remove an entry's label."""
        event = ValueUpdate(value="entry_label", target_id=target_id, label=label)
        await self._write(lambda: (label_write(target_id, label), event), context)

    async def append_message(
        self, message: AgentMessage, context: Context, *, once: Once | None = None
    ) -> str:
        """Append a message; during a run it is placed at the next checkpoint."""
        check_appendable(message)
        return await append(self._owner, MessagePayload(message=message), context, once=once)

    async def append_custom_entry(
        self,
        custom_type: str,
        data: JsonValue | None,
        context: Context,
        *,
        once: Once | None = None,
    ) -> str:
        """Append application data; during a run it is placed at the next checkpoint."""
        return await append(self._owner, custom_payload(custom_type, data), context, once=once)

    async def _write(
        self, make: Callable[[], tuple[Write, HarnessEvent | None]], context: Context
    ) -> None:
        def plan(
            projection: LaneProjection, mutator: SessionMutator, inner: Context
        ) -> Decision[None]:
            write, event = make()
            return Commit(Step((write,), projection, () if event is None else (event,)), None)

        await self._owner.command(plan, context)


def _check(address: Address[T]) -> None:
    # Bypassing the owning lane would make its projection stale (§5.2).
    if address.namespace == "pi" or address.namespace.startswith("pi."):
        raise InvalidArgument(f"namespace {address.namespace} is reserved")
