"""What the storage tells whoever counts its work: a port, and a default that counts nothing (design §13)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Protocol, assert_never

from harness.errors import OperationKind
from harness.operation.lane_state import (
    CompactionLastResult,
    LaneLastResult,
    NavigationLastResult,
    Outcome,
    RunLastResult,
)
from harness.operation.state import OperationMeta
from harness.storage.writes import InsertUsage, SetValue, Write
from harness.usage import Usage
from storage_pg.derived import kind_of
from storage_pg.due import Due


class StorageMeter(Protocol):
    """Hears of claims and commits. It is called on the event loop: it must neither wait nor raise.

    Nothing that it is told names a tenant, a session or content.
    """

    def claimed(self, seconds: float) -> None:
        """A claim was answered after this long, whatever the answer."""
        ...

    def committed(self, seconds: float, *, relaxed: bool) -> None:
        """A commit was answered after this long; `relaxed`: it did not wait for the disk."""
        ...

    def accepted(self, kind: OperationKind) -> None:
        """An operation was accepted durably."""
        ...

    def ended(self, kind: OperationKind, outcome: Outcome, code: str | None) -> None:
        """An operation reached its outcome; `code` is the error's when it failed."""
        ...

    def used(self, usage: Usage) -> None:
        """A model's answer was paid for. Corrections of the ledger are not told."""
        ...


class SilentStorageMeter:
    """Counts nothing."""

    def claimed(self, seconds: float) -> None:
        """Nothing."""

    def committed(self, seconds: float, *, relaxed: bool) -> None:
        """Nothing."""

    def accepted(self, kind: OperationKind) -> None:
        """Nothing."""

    def ended(self, kind: OperationKind, outcome: Outcome, code: str | None) -> None:
        """Nothing."""

    def used(self, usage: Usage) -> None:
        """Nothing."""


SILENT: StorageMeter = SilentStorageMeter()


def tell_commit(
    meter: StorageMeter,
    writes: Sequence[Write],
    due: Mapping[str, Due | None],
    open_before: Container[str],
) -> None:
    """Tell what a commit did, once it is known to have landed.

    `due` is what became of operations in it (None: over); `open_before` holds those that were open.
    """
    for write in writes:
        match write:
            case InsertUsage(row=row) if not row.adjustment:
                meter.used(row.usage)
            case SetValue(namespace="pi.op.meta", value=OperationMeta() as meta):
                if meta.operation_id in due and meta.operation_id not in open_before:
                    meter.accepted(kind_of(meta))
            case SetValue(
                namespace="pi.lane.lastResult",
                value=(RunLastResult() | CompactionLastResult() | NavigationLastResult()) as result,
            ):
                if result.operation_id in due and due[result.operation_id] is None:
                    code = None if result.error is None else result.error.code
                    meter.ended(_kind_of_result(result), result.outcome, code)
            case _:
                continue


def _kind_of_result(result: LaneLastResult) -> OperationKind:
    match result:
        case RunLastResult():
            return "run"
        case CompactionLastResult():
            return "compaction"
        case NavigationLastResult():
            return "navigation"
        case _:
            assert_never(result)
