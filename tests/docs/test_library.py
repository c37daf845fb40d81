"""Every example of the library page runs, prints what the page says, and fits the types."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import harness
from app.local_model import MODEL_ID, local_model_server
from tests.docs.examples import DOCS, Example, examples

ROOT = DOCS.parent
PAGE = examples("library.md")
PLAIN = [example for example in PAGE if not example.needs]
WITH_MODEL = [example for example in PAGE if example.needs]


async def run(example: Example, folder: Path, **environment: str) -> str:
    """What the program prints, run where nothing of this project lies about."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        "-c",
        example.code,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert errors == b""
    return printed.decode()


def test_the_page_has_its_examples() -> None:
    assert len(PLAIN) >= 6
    assert len(WITH_MODEL) == 1
    assert all(example.output for example in PAGE)
    text = (DOCS / "library.md").read_text(encoding="utf-8")
    assert text.count("```python") == len(PAGE)


@pytest.mark.parametrize("example", PLAIN, ids=lambda example: example.title)
async def test_an_example_prints_what_the_page_says(example: Example, tmp_path: Path) -> None:
    printed = await run(example, tmp_path)
    assert example.matches(printed), printed


@pytest.mark.xdist_group("local_model")
async def test_the_example_with_a_model_talks_to_one(tmp_path: Path) -> None:
    async with local_model_server() as url:
        printed = await run(
            WITH_MODEL[0], tmp_path, OPENAI_BASE_URL=f"{url}/v1", OPENAI_MODEL=MODEL_ID
        )
    assert WITH_MODEL[0].matches(printed), printed


def test_the_examples_fit_the_types(tmp_path: Path) -> None:
    for number, example in enumerate(PAGE):
        (tmp_path / f"example_{number}.py").write_text(example.code, encoding="utf-8")
    settings = {"include": ["."], "typeCheckingMode": "standard", "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_the_names_of_the_package_are_what_it_says() -> None:
    # What type checkers see and what happens at run time are two lists: they must agree.
    source = (ROOT / "harness" / "__init__.py").read_text(encoding="utf-8")
    seen = dict(re.findall(r"^    from [\w.]+ import (\w+) as (\w+)$", source, re.MULTILINE))
    assert all(name == alias for name, alias in seen.items())
    assert sorted(seen) == sorted(harness.__all__)
    for module, name in re.findall(
        r"^    from ([\w.]+) import (\w+) as \w+$", source, re.MULTILINE
    ):
        assert getattr(harness, name) is getattr(importlib.import_module(module), name), name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = harness.no_such_name


def test_importing_the_package_brings_nothing_with_it() -> None:
    script = textwrap.dedent("""
        import sys
        before = set(sys.modules)
        import harness
        print(sorted(name for name in set(sys.modules) - before if name.startswith("harness.")))
        print(sorted({"asyncio", "sqlite3", "msgspec"} & set(sys.modules)))
        harness.Ok
        print(sorted(name for name in set(sys.modules) - before if name.startswith("harness.")))
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.splitlines() == ["[]", "[]", "['harness.result']"]
