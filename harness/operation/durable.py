"""How what an operation leaves in the store is encoded, and the error that it may end with."""

from __future__ import annotations

import msgspec

from harness.codec import JsonValue


class Durable(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Common encoding rules of operation state."""


class OperationError(Durable, frozen=True, kw_only=True):
    """Why an operation failed: a stable code, a readable message, structured details."""

    code: str
    message: str
    details: JsonValue = None
