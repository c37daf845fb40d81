"""What a storage backend tells the conformance suite about itself."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from harness.storage.protocol import Storage


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend promises beyond the common contract; the suite skips only by these.

    `durable`: a committed transaction survives `crash`. `multi_process_lease`: a second opener is
    refused while the first lives. `physical_reclaim`: deleted values leave no bytes behind at once.
    `any_metadata`: the metadata of sessions may hold NUL and lone surrogates; else they are refused.
    """

    durable: bool = False
    multi_process_lease: bool = False
    physical_reclaim: bool = False
    any_metadata: bool = False


class StorageBackend(Protocol):
    """One backend under test. A new instance serves each test and owns what it creates."""

    name: str
    capabilities: Capabilities

    async def create(self) -> Storage:
        """An open storage for a new session that holds nothing."""
        ...

    async def reopen(self) -> Storage:
        """Open the session created last once more; raises `SessionInUse` while it is open."""
        ...

    async def crash(self) -> Storage:
        """Drop the open storage as a dying process would, without close, then open it again."""
        ...

    async def dispose(self) -> None:
        """Close what is open and remove what was stored."""
        ...


class _Declares(Protocol):
    """Anything under test."""

    name: str
    capabilities: Capabilities


def require(backend: _Declares, capability: str) -> None:
    """Skip the running test unless the backend declares this capability."""
    if not getattr(backend.capabilities, capability):
        import pytest  # the suite runs under pytest; nothing else in the package needs it

        pytest.skip(f"{backend.name} declares no {capability}")


@contextmanager
def expect(*errors: type[BaseException]) -> Generator[None]:
    """Fail unless the block raises one of these errors."""
    try:
        yield
    except errors:
        return
    names = " or ".join(error.__name__ for error in errors)
    raise AssertionError(f"expected {names}, and nothing was raised")
