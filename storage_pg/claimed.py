"""A session as it comes with a claim: identity, position, totals and control values."""

from __future__ import annotations

from dataclasses import dataclass

from harness.storage.metadata import SessionMetadata
from harness.usage import SessionStats

# Under this namespace, which no session can have, a claim brings open operations' traces as W3C
# `traceparent`s, by operation id.
TRACE = ""


@dataclass(frozen=True, slots=True)
class ClaimedSession:
    """What the claim's one round trip brought. `control` holds (namespace, key, seq, JSON), and
    traces under `TRACE`."""

    id: str
    tenant_id: str
    fence: int
    lock_key: int
    next_seq: int
    stats: SessionStats
    agent: str | None
    name: str | None
    metadata: SessionMetadata
    control: tuple[tuple[str, str, int, str], ...]


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """Another host owns the session; `host_id` is None while ownership is changing."""

    id: str
    host_id: str | None


@dataclass(frozen=True, slots=True)
class NoSuchSession:
    """The tenant has no session of this id."""

    id: str


Claim = ClaimedSession | HeldElsewhere | NoSuchSession
