"""Packs what a provider wants back with a content block into one opaque string, and out again (§0.7).

A bare signature stays as it is, which other implementations of the same format understand. Ids and
further details make it a JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from harness.codec import JsonValue, foreign_json
from harness.errors import InvalidArgument

_MARK = '{"laneway":'


@dataclass(frozen=True, slots=True)
class Provenance:
    """A block's provider id, its signature, and details that must come back unchanged."""

    id: str | None = None
    signature: str | None = None
    details: Mapping[str, JsonValue] | None = None


def pack(provenance: Provenance) -> str | None:
    """The string to store with the block, or None when there is nothing to send back."""
    if provenance.id is None and not provenance.details:
        return provenance.signature or None
    try:
        details = foreign_json(provenance.details) if provenance.details else None
    except InvalidArgument:
        details = None
    body = {
        key: value
        for key, value in (
            ("id", provenance.id),
            ("signature", provenance.signature),
            ("details", details),
        )
        if value
    }
    return json.dumps({"laneway": body}, separators=(",", ":")) if body else None


def unpack(text: str | None) -> Provenance:
    """The parts of a packed string; anything else is a bare signature."""
    if not text:
        return Provenance()
    if not text.startswith(_MARK):
        return Provenance(signature=text)
    try:
        decoded: object = json.loads(text)
    except ValueError:
        return Provenance(signature=text)
    body = cast("dict[str, object]", decoded).get("laneway") if isinstance(decoded, dict) else None
    if not isinstance(body, dict):
        return Provenance(signature=text)
    fields = cast("dict[str, JsonValue]", body)
    id_, signature, details = fields.get("id"), fields.get("signature"), fields.get("details")
    return Provenance(
        id=id_ if isinstance(id_, str) else None,
        signature=signature if isinstance(signature, str) else None,
        details=details if isinstance(details, Mapping) else None,
    )
