"""API keys: `lw_<id>_<secret>`, shown once, kept as a hash (design §10)."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_KEY = re.compile(r"lw_([0-9a-f]{20})_([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret. Instants are Unix milliseconds."""

    id: str
    tenant_id: str
    name: str
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int | None
    revoked_at: int | None


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key, with the plain text that is shown once."""

    key: ApiKey
    plain: str
    secret_hash: bytes

    def __repr__(self) -> str:
        return f"MintedKey({self.key.id})"


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """Whom a presented key speaks for."""

    key: ApiKey
    tenant_name: str
    # Any: JSON whose keys are the quotas' names.
    limits: Mapping[str, Any]


def mint_key(
    tenant_id: str, name: str, scopes: tuple[str, ...], now_ms: int, expires_at: int | None
) -> MintedKey:
    """A new key with 256 random bits of secret."""
    key_id, secret = secrets.token_hex(10), secrets.token_hex(32)
    key = ApiKey(key_id, tenant_id, name, scopes, now_ms, expires_at, None)
    return MintedKey(key, f"lw_{key_id}_{secret}", _digest(secret))


def split_key(presented: str) -> tuple[str, str] | None:
    """Id and secret of a presented key, None when it does not look like one."""
    found = _KEY.fullmatch(presented)
    return None if found is None else (found[1], found[2])


def verify_secret(secret: str, secret_hash: bytes) -> bool:
    """Whether the secret is the hashed one, in constant time."""
    return hmac.compare_digest(_digest(secret), bytes(secret_hash))


def _digest(secret: str) -> bytes:
    # The secret is random, not chosen by a person: nothing slower than a plain hash is needed.
    return hashlib.sha256(secret.encode()).digest()
