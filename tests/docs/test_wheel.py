"""What `pip install laneway` brings is enough: the built wheel alone runs the examples."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.docs.examples import DOCS
from tests.docs.test_library import PLAIN, run


def build(folder: Path) -> None:
    """The wheel, from this tree."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=DOCS.parent,
        check=True,
        capture_output=True,
    )


async def test_the_wheel_alone_runs_the_examples(tmp_path: Path) -> None:
    await asyncio.to_thread(build, tmp_path / "dist")
    (wheel,) = (tmp_path / "dist").glob("laneway-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = set(archive.namelist())
    assert "harness/py.typed" in names
    assert {"migrations/sql/0002/search.sql", "storage_pg/sql/search.sql"} <= names
    assert not any(name.startswith("tests/") for name in names)
    (tmp_path / "work").mkdir()
    # The search example needs the most: SQL files of the package among it.
    example = next(one for one in PLAIN if one.title == "Search")
    code = f"import harness\nassert harness.__file__.startswith({str(tmp_path)!r})\n{example.code}"
    printed = await run(
        type(example)(example.title, code, example.output, ""),
        tmp_path / "work",
        PYTHONPATH=str(tmp_path / "site"),
    )
    assert example.matches(printed), printed
