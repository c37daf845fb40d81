"""What a process loads before it works: a worker that died is replaced as fast as one can start."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["workers.worker", "harness"])
@pytest.mark.parametrize("library", ["alembic", "sqlalchemy", "fastapi", "pydantic_ai"])
def test_only_what_is_needed_is_loaded(module: str, library: str) -> None:
    program = f"import sys, {module}; sys.exit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
