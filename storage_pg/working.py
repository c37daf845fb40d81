"""What the operations accepted under this claim keep beside their state: who wrote it all need not ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from harness.codec import decode, encode
from harness.storage.address import Value
from harness.storage.protocol import StoredValue
from harness.storage.writes import CHECKPOINT_NAMESPACE, DeleteValue, SetValue, Write
from storage_pg.derived import META

T = TypeVar("T")

# Keys in these begin with the operation's id and a colon (§1.3).
_NAMESPACES = frozenset(
    {"pi.op.tool_args", "pi.op.tool_memo", "pi.op.preparation", CHECKPOINT_NAMESPACE}
)


class WorkingValues:
    """Follows a storage's commits, in their order. An operation that was open at the claim is not
    known here, nor is one that has ended."""

    def __init__(self) -> None:
        # As text: whoever wrote a value may change it, and what it was is what is stored.
        self._operations: dict[str, dict[tuple[str, str], tuple[int, bytes]]] = {}

    def note(self, writes: Sequence[Write], first_seq: int) -> None:
        """Take in writes, the first of which has this sequence number."""
        for write in writes:
            # First: what an operation begins with may come before it in its transaction.
            if isinstance(write, SetValue) and write.namespace == META:
                self._operations[write.key] = {}
        for seq, write in enumerate(writes, start=first_seq):
            match write:
                case SetValue(namespace=namespace, key=key, value=value):
                    if (owner := self._of(namespace, key)) is not None:
                        owner[namespace, key] = (seq, encode(value))
                case DeleteValue(namespace=namespace, key=key):
                    if namespace == META:
                        self._operations.pop(key, None)
                    elif (owner := self._of(namespace, key)) is not None:
                        owner.pop((namespace, key), None)
                case _:
                    pass

    def scan(self, prefix: Value[T]) -> list[StoredValue[T]] | None:
        """The values whose key starts with the bound key, by code point; None when only the database
        knows them."""
        owner = self._of(prefix.namespace, prefix.key)
        if owner is None:
            return None
        return [
            StoredValue(Value(prefix.type, namespace, key), decode(text, prefix.type), seq)
            for (namespace, key), (seq, text) in sorted(owner.items())
            if namespace == prefix.namespace and key.startswith(prefix.key)
        ]

    def _of(self, namespace: str, key: str) -> dict[tuple[str, str], tuple[int, bytes]] | None:
        if namespace not in _NAMESPACES:
            return None
        operation_id, colon, _ = key.partition(":")
        return self._operations.get(operation_id) if colon else None
