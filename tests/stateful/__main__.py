"""`python -m tests.stateful LEFT RIGHT < script`: plays a script that a failed test printed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import get_args

from tests.postgres import Database, SharedCluster
from tests.stateful.machine import machine
from tests.stateful.stages import Backend, stage


def main(names: list[str]) -> int:
    """0 when both sides agreed to the end."""
    known = get_args(Backend)
    if len(names) != 2 or any(name not in known for name in names):
        sys.stderr.write(f"usage: python -m tests.stateful LEFT RIGHT, each one of {known}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        cluster = SharedCluster(Path(folder))

        def database() -> Database:
            return cluster.get().new_database()

        left, right = names
        try:
            with stage(left, right, Path(folder), database) as played:  # pyright: ignore[reportArgumentType]  # checked above
                exec(sys.stdin.read(), {"Sessions": machine(played)})  # the point of it
        finally:
            cluster.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
