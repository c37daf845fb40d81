"""Numbers of advisory locks. They are hashes that nobody can steer, so tenants cannot collide on purpose."""

from __future__ import annotations

import hashlib
import uuid


def session_lock(tenant_id: str, session_id: str) -> int:
    """The lock that owning a session means."""
    return _number(b"session", tenant_id, session_id)


def host_lock(host_id: str) -> int:
    """The lock that one incarnation of a host holds."""
    return _number(b"host", host_id)


def _number(kind: bytes, *ids: str) -> int:
    material = kind + b"".join(uuid.UUID(part).bytes for part in ids)
    digest = hashlib.blake2b(material, digest_size=8, person=b"laneway").digest()
    return int.from_bytes(digest, "big", signed=True)
