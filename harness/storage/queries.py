"""Loads named SQL statements from the `.sql` files of this package.

A file is a series of blocks: `-- name: <name>`, comment lines that explain the statement, and the
statement. Blocks before the first name are the file's own introduction.
"""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_queries(package: str, file: str) -> dict[str, str]:
    """The statements of `file` by name; raises `ValueError` for a name that is given twice."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    queries: dict[str, str] = {}
    for name, block in zip(parts[::2], parts[1::2], strict=True):
        if name in queries:
            raise ValueError(f"{file} names {name} twice")
        lines = [line for line in block.splitlines() if not line.lstrip().startswith("--")]
        queries[name] = "\n".join(lines).strip().removesuffix(";")
    return queries


def load_script(package: str, file: str) -> str:
    """A whole `.sql` file, to be run as a script."""
    return resources.files(package).joinpath(file).read_text(encoding="utf-8")
