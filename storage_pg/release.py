"""The migrations of one build in their order, and which schemas its code can work with (design §5)."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

# A step before a deploy adds what the new code needs and leaves the old code alone; a step after it
# removes what only the old code used. Each revision names its own in a variable `step`.
Step: TypeAlias = Literal["before", "after"]


class SchemaBehind(RuntimeError):
    """The database's schema is older than this build: run `laneway migrate`."""


class SchemaAhead(RuntimeError):
    """A newer Laneway migrated this database: upgrade this process."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One migration."""

    name: str
    step: Step


@dataclass(frozen=True)
class Release:
    """The chain of one build. `more` are folders with revisions that go on where its own end."""

    more: tuple[Path, ...] = ()

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where the revisions are."""
        return (migrations_folder() / "versions", *self.more)

    @cached_property
    def revisions(self) -> Sequence[Revision]:
        """Every revision, oldest first; raises `ValueError` when one does not name its step, or when
        they are no chain."""
        after: dict[str | None, Revision] = {}
        for folder in self.folders:
            for file in sorted(folder.glob("*.py")):
                facts = _facts(file)
                if "revision" not in facts:
                    continue
                name, below = facts["revision"], facts.get("down_revision")
                match facts.get("step"):
                    case "before" | "after" as step:
                        pass
                    case _:
                        raise ValueError(f"revision {name} has no step 'before' or 'after'")
                if name is None or below in after:
                    raise ValueError(f"{file.name} does not go on where one other revision ends")
                after[below] = Revision(name, step)
        found: list[Revision] = []
        at: str | None = None
        while at in after:
            found.append(after.pop(at))
            at = found[-1].name
        if after:
            raise ValueError(f"no chain leads to the revisions above {sorted(map(str, after))}")
        return found

    @property
    def head(self) -> str:
        """The newest revision."""
        return self.revisions[-1].name

    @property
    def needed(self) -> str:
        """The newest step before a deploy: what this build's code cannot work without."""
        return next(each.name for each in reversed(self.revisions) if each.step == "before")

    def knows(self, name: str) -> bool:
        """Whether a revision is one of these."""
        return any(each.name == name for each in self.revisions)

    def reached(self, name: str | None, wanted: str) -> bool:
        """Whether a schema at revision `name` has everything up to `wanted`."""
        names = [each.name for each in self.revisions]
        return name is not None and names.index(name) >= names.index(wanted)

    def floor(self, name: str) -> str:
        """What a build must know to work with a schema at this revision: the newest step after a
        deploy, which took something from older ones, or else the first revision of all."""
        floor = self.revisions[0].name
        for each in self.revisions:
            if each.step == "after":
                floor = each.name
            if each.name == name:
                break
        return floor

    def accept(self, found: str | None, floor: str | None) -> None:
        """Raise `SchemaBehind` or `SchemaAhead` unless this build's code works with a schema.

        `found` is the schema's revision and `floor` what was recorded with it. A newer schema will
        do as long as only steps before a deploy were taken beyond what this build knows.
        """
        if found is None or (self.knows(found) and not self.reached(found, self.needed)):
            raise SchemaBehind(f"schema is at {found or 'nothing'}, this build needs {self.needed}")
        if not self.knows(found) and (floor is None or not self.knows(floor)):
            raise SchemaAhead(f"schema is at {found}, which is too new for this build")


THIS_BUILD = Release()


def migrations_folder() -> Path:
    """Where Alembic's environment is."""
    # Found, not imported: migrations stand above this package and import it.
    spec = importlib.util.find_spec("migrations")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _facts(file: Path) -> dict[str, str | None]:
    """The names that a revision's file gives to constants. Read, not run: running it loads Alembic,
    which only those who migrate need."""
    facts: dict[str, str | None] = {}
    for statement in ast.parse(file.read_text()).body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Constant(value=str() | None as constant)
            ):
                facts[name] = constant
            case _:
                pass
    return facts
