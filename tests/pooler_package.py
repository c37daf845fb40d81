"""Finds pgbouncer, or gets Debian's package of it into `.tools` without being root."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / ".tools" / "pgbouncer"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
_SECONDS = 120.0
_QUICKLY = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=15")
_DEPENDENCY = re.compile(r"^ *\|?(?:Pre)?Depends: (lib[^<>\s]+)$", re.MULTILINE)
# Every installation has these, and another copy of the C library breaks its programs.
_NEVER = re.compile(r"^lib(c6|gcc-s1|crypt1)$|-perl$")


class NoPooler(Exception):
    """There is no pgbouncer here and none can be had; the message says why."""


@dataclass(frozen=True, slots=True)
class PoolerProgram:
    """The program, the folders of libraries that came with it, and its version."""

    path: Path
    libraries: tuple[Path, ...]
    version: tuple[int, ...]

    @property
    def environment(self) -> dict[str, str]:
        """What it needs to find its libraries."""
        if not self.libraries:
            return dict(os.environ)
        found = ":".join(str(folder) for folder in self.libraries)
        return {**os.environ, "LD_LIBRARY_PATH": found}


def pooler_program() -> PoolerProgram:
    """The pgbouncer of this machine, or else its package's; raises `NoPooler`."""
    installed = shutil.which("pgbouncer", path=_PATH)
    if installed is not None:
        return _checked(Path(installed), ())
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoPooler("no pgbouncer on this machine, and no apt to get it with")
    try:
        _FOLDER.mkdir(parents=True, exist_ok=True)
        with _alone(_FOLDER / "lock"):
            unpacked = _FOLDER / "unpacked"
            if not unpacked.exists():
                _fetch(unpacked)
    except OSError as error:
        raise NoPooler(f"no pgbouncer, and its package cannot be unpacked here: {error}") from error
    folders = {file.parent for file in (unpacked / "usr" / "lib").rglob("*.so.*")}
    return _checked(unpacked / "usr" / "sbin" / "pgbouncer", tuple(sorted(folders)))


def _checked(path: Path, libraries: tuple[Path, ...]) -> PoolerProgram:
    found = PoolerProgram(path, libraries, ())
    said = _run([str(path), "--version"], environment=found.environment)
    version = re.search(r"PgBouncer (\d+(?:\.\d+)*)", said)
    if version is None:
        raise NoPooler(f"{path} does not say its version")
    return PoolerProgram(path, libraries, tuple(int(part) for part in version[1].split(".")))


def _fetch(target: Path) -> None:
    """Download the package and the libraries of it that are not installed, and unpack them."""
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        try:
            options = _QUICKLY
            _download("pgbouncer", folder, options)
        except NoPooler:
            # This machine has no lists of packages, or old ones: fetch some that are ours alone.
            options = (*_QUICKLY, *_own_lists(folder))
            _run(["apt-get", *options, "update"])
            _download("pgbouncer", folder, options)
        for package in _missing_libraries(options):
            _download(package, folder, options)
        unpacked = folder / "unpacked"
        for archive in folder.glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(archive), str(unpacked)])
        unpacked.chmod(0o755)
        unpacked.rename(target)


def _own_lists(folder: Path) -> tuple[str, ...]:
    for place in ("state/lists/partial", "cache/archives/partial"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    settings = (
        f"Dir::State={folder / 'state'}",
        "Dir::State::status=/var/lib/dpkg/status",
        f"Dir::Cache={folder / 'cache'}",
    )
    return tuple(part for setting in settings for part in ("-o", setting))


def _download(package: str, folder: Path, options: tuple[str, ...]) -> None:
    _run(["apt-get", *options, "download", package], folder)


def _missing_libraries(options: tuple[str, ...]) -> list[str]:
    """The libraries that pgbouncer needs, directly or through each other, and that are not there."""
    missing: list[str] = []
    asked = {"pgbouncer"}
    todo = ["pgbouncer"]
    while todo:
        said = _run(["apt-cache", *options, "depends", "--no-recommends", todo.pop()])
        for library in sorted(set(_DEPENDENCY.findall(said)) - asked):
            asked.add(library)
            if not _NEVER.search(library) and not _installed(library):
                missing.append(library)
                todo.append(library)
    return missing


def _installed(package: str) -> bool:
    try:
        said = _run(["dpkg-query", "--show", "--showformat=${db:Status-Status} ", package])
    except NoPooler:
        return False
    return "installed" in said.split()


def _run(
    command: list[str], folder: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**(environment or os.environ), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPooler(f"no pgbouncer: {error}") from error
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise NoPooler(
            f"no pgbouncer: {command[0]} failed: {reason[-1] if reason else 'no reason'}"
        )
    return done.stdout.decode(errors="replace")


@contextmanager
def _alone(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
