"""Token and cost accounting: one `Usage` per provider attempt, one ledger row each (§1.6)."""

from __future__ import annotations

import msgspec

from harness.codec import JsonValue


class UsageCost(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Cost in US dollars, by token class."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0
    total: float = 0.0


class Usage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Tokens of one attempt or a sum of attempts."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    cost: UsageCost = UsageCost()


ZERO_USAGE = Usage()


def add_usage(left: Usage, right: Usage) -> Usage:
    """The sum of two usages."""
    return Usage(
        input=left.input + right.input,
        output=left.output + right.output,
        cache_read=left.cache_read + right.cache_read,
        cache_write=left.cache_write + right.cache_write,
        total_tokens=left.total_tokens + right.total_tokens,
        cost=UsageCost(
            input=left.cost.input + right.cost.input,
            output=left.cost.output + right.cost.output,
            cache_read=left.cost.cache_read + right.cost.cache_read,
            cache_write=left.cost.cache_write + right.cost.cache_write,
            total=left.cost.total + right.cost.total,
        ),
    )


class NewUsageRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A ledger row as the caller supplies it; storage stamps `seq` at commit."""

    id: str
    usage: Usage
    entry_id: str | None = None
    adjustment: bool = False
    details: JsonValue = None


class UsageRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
):
    """A committed ledger row. Never modified, never deleted.

    `adjustment` marks a caller-supplied reconciliation rather than a provider's report.
    """

    id: str
    seq: int
    usage: Usage
    adjustment: bool
    entry_id: str | msgspec.UnsetType = msgspec.UNSET
    details: JsonValue | msgspec.UnsetType = msgspec.UNSET


def stamp_usage(row: NewUsageRow, seq: int) -> UsageRow:
    """The committed form of a row."""
    return UsageRow(
        id=row.id,
        seq=seq,
        usage=row.usage,
        adjustment=row.adjustment,
        entry_id=msgspec.UNSET if row.entry_id is None else row.entry_id,
        details=msgspec.UNSET if row.details is None else row.details,
    )


class SessionStats(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Maintained totals: message entries and the sum of the ledger (§1.6)."""

    message_count: int
    usage: Usage


EMPTY_STATS = SessionStats(message_count=0, usage=ZERO_USAGE)
