"""Tagged errors that callers match on, and exceptions for faults, close and corruption (§5.1, §4.8).

HarnessError
├── HarnessFault        a commit failed or an invariant broke: reopen the session
├── HarnessClosed       the harness was closed while the call was in flight
├── DriveAbandoned      the caller that installed the shared pass went away
├── OutcomeReplaced     the awaited operation ended, and a later one's result took the place of its own
└── StorageError
    ├── StorageClosed   the storage instance was closed
    ├── LeaseLost       another host owns this session now
    ├── SessionInUse    somebody else has the session open
    ├── StorageCorrupt  stored data contradicts itself
    └── NewerVersion    a newer Laneway wrote this session
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

OperationKind: TypeAlias = Literal["run", "compaction", "navigation"]


class TaggedError(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="code", omit_defaults=True
):
    """An expected rejection: its class name is its stable code, its fields say what to do."""

    message: str

    @property
    def code(self) -> str:
        """The stable name of this error on the wire."""
        return type(self).__name__


class LaneBusy(TaggedError, frozen=True, kw_only=True, tag=True):
    """The lane has an open operation; wait for it, steer it, or use another lane."""

    lane: str
    operation_id: str
    operation_kind: OperationKind


class OperationMismatch(TaggedError, frozen=True, kw_only=True, tag=True):
    """The expected operation is neither current nor the latest one of the lane."""

    lane: str
    expected_operation_id: str
    current_operation_id: str | None = None
    last_operation_id: str | None = None


class NoActiveRun(TaggedError, frozen=True, kw_only=True, tag=True):
    """No run takes queued input on this lane; submit a prompt instead."""

    lane: str


class NoActiveOperation(TaggedError, frozen=True, kw_only=True, tag=True):
    """The lane is idle: there is nothing to abort."""

    lane: str


class NothingToResume(TaggedError, frozen=True, kw_only=True, tag=True):
    """The lane is idle: there is nothing to resume."""

    lane: str


class NothingToCompact(TaggedError, frozen=True, kw_only=True, tag=True):
    """The branch holds nothing that a compaction could summarize."""

    lane: str


class InvalidMessage(TaggedError, frozen=True, kw_only=True, tag=True):
    """The message cannot be accepted; `reason` says what is wrong with it."""

    lane: str
    reason: str


class InvalidNavigation(TaggedError, frozen=True, kw_only=True, tag=True):
    """The navigation makes no sense from here; `reason` says why."""

    lane: str
    reason: str


class UnknownSkill(TaggedError, frozen=True, kw_only=True, tag=True):
    """No skill of that name is registered."""

    name: str


class UnknownTemplate(TaggedError, frozen=True, kw_only=True, tag=True):
    """No prompt template of that name is registered."""

    name: str


class UnknownTarget(TaggedError, frozen=True, kw_only=True, tag=True):
    """No entry with that id exists in the session."""

    target_id: str


class LaneExists(TaggedError, frozen=True, kw_only=True, tag=True):
    """A lane of that name exists; lane names are permanent."""

    lane: str


class InvalidLane(TaggedError, frozen=True, kw_only=True, tag=True):
    """The lane name is not allowed; `reason` says why."""

    lane: str
    reason: str


class Closed(TaggedError, frozen=True, kw_only=True, tag=True):
    """The harness is closed; open the session again."""


class HarnessError(Exception):
    """Base of everything the harness raises on its own behalf."""


class HarnessFault(HarnessError):
    """The harness stopped because a commit failed or an invariant broke; reopen the session. `lane` is
    where that happened, None when it was on no lane."""

    def __init__(
        self, message: str, cause: BaseException | None = None, lane: str | None = None
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.lane = lane


class HarnessClosed(HarnessError):
    """The harness was closed; what was accepted stays durable and can be driven after reopening."""

    def __init__(self, message: str = "harness is closed") -> None:
        super().__init__(message)


class DriveAbandoned(HarnessError):
    """The caller that installed the shared pass was cancelled; drive the operation again."""

    def __init__(self, message: str = "drive pass abandoned by its installer") -> None:
        super().__init__(message)


class OutcomeReplaced(HarnessError):
    """The operation ended, but a later operation of the lane ended too before this caller looked.

    A lane keeps its latest result only (§3.13): what became of this one is in the transcript, and
    in its receipt where a service keeps them.
    """

    def __init__(self, operation_id: str) -> None:
        super().__init__(
            f"operation {operation_id} is over, and the lane already holds a later operation's result"
        )
        self.operation_id = operation_id


class OperationCancelledByCaller(HarnessError):
    """The caller's own context was cancelled; only its observation ended."""

    def __init__(self, message: str = "invocation cancelled") -> None:
        super().__init__(message)


class InvariantDefect(HarnessError):
    """The runtime met a state that no correct history produces."""


class StorageError(HarnessError):
    """Base of storage failures; a failed admitted commit faults the harness."""


class StorageClosed(StorageError):
    """The storage instance is closed; open the session again through its repository."""

    def __init__(self, message: str = "storage is closed") -> None:
        super().__init__(message)


class LeaseLost(StorageError):
    """Another host owns this session now; drop it and let that host go on."""

    def __init__(self, message: str = "another host owns this session now") -> None:
        super().__init__(message)


class SessionInUse(StorageError):
    """Somebody else has the session open; `holder` names them where that is known."""

    def __init__(self, session_id: str, holder: str | None = None) -> None:
        by = f" by {holder}" if holder else ""
        super().__init__(f"session {session_id} is open elsewhere{by}")
        self.session_id = session_id
        self.holder = holder


class SessionNotFound(StorageError):
    """No such session in this repository."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id}")
        self.session_id = session_id


class StorageCorrupt(StorageError):
    """Stored data contradicts itself: a duplicate id, a missing parent, an unreadable record."""


class NewerVersion(StorageError):
    """A newer Laneway wrote this session; upgrade this process to open it."""

    def __init__(self, found: int, supported: int) -> None:
        super().__init__(f"session has storage version {found}; this build reads up to {supported}")
        self.found = found
        self.supported = supported


class InvalidArgument(HarnessError, ValueError):
    """A caller passed a value outside the documented range."""
