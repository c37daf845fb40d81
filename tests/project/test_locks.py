"""The lock files pin every direct dependency with hashes and say nothing about where packages come from."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock: Path) -> dict[str, str]:
    """Each locked name with the text of its pin, hashes included."""
    text = re.sub(r"^#.*$", "", lock.read_text(), flags=re.MULTILINE)
    found = re.findall(r"^([A-Za-z0-9._-]+)==(.*(?:\n[ ]+.*)*)", text, flags=re.MULTILINE)
    return {canonical(name): rest for name, rest in found}


def names(requirements: list[str]) -> set[str]:
    matches = [re.match(r"[A-Za-z0-9._-]+", r) for r in requirements]
    return {canonical(m.group()) for m in matches if m}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_pin_has_a_hash_and_no_lock_names_a_host(lock: Path) -> None:
    assert pins(lock)
    assert not [name for name, rest in pins(lock).items() if "--hash=sha256:" not in rest]
    assert "://" not in lock.read_text()
    assert "index-url" not in lock.read_text()


def test_locks_cover_what_pyproject_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = names(project["project"]["dependencies"])
    extras = names([r for rs in project["project"]["optional-dependencies"].values() for r in rs])
    dev = names(project["dependency-groups"]["dev"])
    assert runtime <= pins(ROOT / "requirements/runtime.lock").keys()
    assert runtime | extras | dev <= pins(ROOT / "requirements/dev.lock").keys()


def test_both_locks_agree_on_versions() -> None:
    runtime, dev = pins(ROOT / "requirements/runtime.lock"), pins(ROOT / "requirements/dev.lock")
    assert [n for n in runtime if runtime[n].split()[0] != dev[n].split()[0]] == []
