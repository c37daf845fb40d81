"""Names the process that holds a session, and tells whether such a process can still be alive.

An owner id is readable text, `host/boot/namespace/pid/start/token`, so that a refused opener can
say who is in the way. The same kernel, process namespace and process start make "that process is
gone" a certainty instead of a guess; without that certainty only a lease's expiry frees a session.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

_UNKNOWN = "-"
_ENDED = "ended"
_alive_here: set[str] = set()


@dataclass(frozen=True, slots=True)
class _Process:
    host: str
    boot: str
    namespace: str
    pid: int
    start: str


def new_owner_id() -> str:
    """An id for one claim of this process; it counts as alive until `forget_owner`."""
    process = _this_process()
    # Not a durable id of the session, only a name for this claim: no injected generator needed.
    token = uuid4().hex
    owner = "/".join(
        (process.host, process.boot, process.namespace, str(process.pid), process.start, token)
    )
    _alive_here.add(owner)
    return owner


def forget_owner(owner_id: str) -> None:
    """This process no longer acts under that id."""
    _alive_here.discard(owner_id)


def describe_owner(owner_id: str) -> str:
    """The owner in words, for people."""
    process = _parse(owner_id)
    return owner_id if process is None else f"process {process.pid} on {process.host}"


def is_certainly_dead(owner_id: str) -> bool:
    """Whether the owner cannot write any more: its process ended, or this process forgot it."""
    process, here = _parse(owner_id), _this_process()
    if process is None or _UNKNOWN in (process.boot, process.namespace, process.start):
        return False
    if (process.host, process.boot, process.namespace) != (here.host, here.boot, here.namespace):
        return False
    if (process.pid, process.start) == (here.pid, here.start):
        return owner_id not in _alive_here
    return not _runs(process)


def _runs(process: _Process) -> bool:
    """Whether the process still runs; yes when that cannot be found out."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists, under another user
    start = _start_of(process.pid)
    return start in (process.start, _UNKNOWN)


def _this_process() -> _Process:
    pid = os.getpid()
    return _Process(
        host=socket.gethostname().replace("/", _UNKNOWN) or _UNKNOWN,
        boot=_read("/proc/sys/kernel/random/boot_id"),
        namespace=_namespace(),
        pid=pid,
        start=_start_of(pid),
    )


def _parse(owner_id: str) -> _Process | None:
    parts = owner_id.split("/")
    if len(parts) != 6 or not parts[3].isdigit():
        return None
    return _Process(parts[0], parts[1], parts[2], int(parts[3]), parts[4])


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]") or _UNKNOWN
    except OSError:
        return _UNKNOWN


def _start_of(pid: int) -> str:
    """The kernel's start time of a process, which tells it from a later one with the same number."""
    stat = _read(f"/proc/{pid}/stat")
    # The second field is the command in parentheses and may contain anything; field 22 is the start.
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= 19:
        return _UNKNOWN
    # A zombie runs no code any more; its start must not match.
    return _ENDED if fields[0] in "ZX" else fields[19]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip() or _UNKNOWN
    except OSError:
        return _UNKNOWN
