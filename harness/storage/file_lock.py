"""An advisory lock beside a session file, which refuses a second writer and names the first."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from harness.errors import SessionInUse
from harness.storage.owner import describe_owner, forget_owner, new_owner_id


class FileLock:
    """Held from construction until `release`; the kernel frees it when the process dies."""

    def __init__(self, path: Path, session_id: str) -> None:
        """Take the lock of the session file `path`; raises `SessionInUse` with its holder."""
        self._path = path.with_name(f"{path.name}.lock")
        self._owner = new_owner_id()
        try:
            self._descriptor = self._take(session_id)
        except BaseException:
            forget_owner(self._owner)
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, self._owner.encode(), 0)

    def _take(self, session_id: str) -> int:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.pread(descriptor, 1_000, 0).decode(errors="replace")
                os.close(descriptor)
                raise SessionInUse(session_id, describe_owner(holder) or None) from error
            # The last holder removes the file: a lock on a removed file excludes nobody.
            if self._still_there(descriptor):
                return descriptor
            os.close(descriptor)

    def _still_there(self, descriptor: int) -> bool:
        try:
            return os.stat(self._path).st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let the next opener in, and leave no file behind."""
        self._path.unlink(missing_ok=True)
        self.abandon()

    def abandon(self) -> None:
        """Let go as a dying process would: unlocked by the kernel, the file still there."""
        os.close(self._descriptor)
        forget_owner(self._owner)
