"""Runs one Postgres program as an ordinary user and ends it when whoever started it is gone.

A script of its own, run by path and importing nothing of Laneway: it stays alive when its owner
is killed, and must be small. Its standard input is a pipe that the owner holds and never writes
to; end of file there means that the owner ended. If this process is killed itself, the kernel
tells its child (Linux).
"""

import ctypes
import json
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION_3 = 0x20080522

_FAST_SHUTDOWN_SECONDS = 20.0
_IMMEDIATE_SHUTDOWN_SECONDS = 5.0


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


def _become(uid: int, gid: int, keep_search: bool) -> None:
    """Drop root. With `keep_search`, keep the one right to walk through closed directories.

    A checkout below a closed home directory would otherwise be out of the server's reach, and
    opening that directory to everybody is not ours to do.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if keep_search:
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if not keep_search:
        return
    bit = 1 << _CAP_DAC_READ_SEARCH
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)(_CapData(bit, bit, bit), _CapData(0, 0, 0))
    if libc.capset(ctypes.byref(header), ctypes.byref(data)) != 0:
        raise OSError(ctypes.get_errno(), "capset failed")
    if libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot keep the right to search directories")


def _run_child(plan: dict[str, object], command: list[str], guard_pid: int) -> None:
    try:
        log = os.open(str(plan["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        uid, gid = plan["uid"], plan["gid"]
        if isinstance(uid, int) and isinstance(gid, int):
            _become(uid, gid, bool(plan["keep_search"]))
        if sys.platform == "linux":
            # Set after the change of user, which clears it.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)
            if os.getppid() != guard_pid:
                os._exit(1)
        os.chdir("/")
        os.execv(command[0], command)
    except BaseException as error:  # noqa: BLE001  # a forked child must never return into the parent's code
        os.write(2, f"guard: {error}\n".encode())
        os._exit(127)


def main() -> int:
    plan = json.loads(sys.argv[1])
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    guard_pid = os.getpid()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        _run_child(plan, sys.argv[2:], guard_pid)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    deadline = 0.0
    escalation = [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL]
    waits = [_FAST_SHUTDOWN_SECONDS, _IMMEDIATE_SHUTDOWN_SECONDS, 60.0]
    watched = [0, wake_read]
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if stopping and time.monotonic() >= deadline and escalation:
            os.kill(child, escalation.pop(0))
            deadline = time.monotonic() + waits.pop(0)
        timeout = max(0.0, deadline - time.monotonic()) if stopping else None
        ready, _, _ = select.select(watched, [], [], timeout)
        if wake_read in ready:
            os.read(wake_read, 4096)
        if 0 in ready and not os.read(0, 4096):
            watched = [wake_read]
            stopping = True


if __name__ == "__main__":
    sys.exit(abs(main()))
