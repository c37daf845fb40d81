"""What is known about a session without opening it (§2.8)."""

from __future__ import annotations

from typing import Any

import msgspec

STORAGE_VERSION = 1


class SessionMetadata(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Identity, age and lineage of a session. `created_at` is Unix milliseconds.

    `store_generation` counts precise rewrites (§2.9); `metadata` is the application's own.
    """

    id: str
    created_at: int
    storage_version: int = STORAGE_VERSION
    cwd: str | None = None
    parent_session_id: str | None = None
    legacy_parent_session_path: str | None = None
    store_generation: int = 0
    # Any: application JSON; the harness never looks inside.
    metadata: dict[str, Any] | None = None
