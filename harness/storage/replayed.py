"""Memory maps whose values may still be the text they were read as."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from harness.codec import decode
from harness.context import Context
from harness.storage.address import Value, ValueList
from harness.storage.memory import MemoryStorage
from harness.storage.protocol import ListElement, ListRead, StoredValue

T = TypeVar("T")


class ReplayedStorage(MemoryStorage):
    """Serves maps that `restore` filled: a typed address decodes what it reads."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        found = await super().get_value(address, context)
        return None if found is None else _typed(found)

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        return [_typed(found) for found in await super().scan_values(prefix, context)]

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        elements = await super().read_list(address, options, context)
        return [
            ListElement(element.seq, _value(element.value, address.type)) for element in elements
        ]


def _typed(found: StoredValue[T]) -> StoredValue[T]:
    return StoredValue(found.address, _value(found.value, found.address.type), found.seq)


# Any: the maps erase value types, and an address's type may be a union, which type[T] cannot name.
def _value(stored: Any, type_: Any) -> Any:
    return decode(bytes(stored), type_) if isinstance(stored, msgspec.Raw) else stored
