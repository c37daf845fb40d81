"""The migrations of one build in their order, and which schemas its code can work with (design §5)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

from alembic.config import Config
from alembic.script import ScriptDirectory

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

    def config(self) -> Config:
        """What Alembic is told."""
        config = Config()
        # Found, not imported: migrations stand above this package and import it.
        spec = importlib.util.find_spec("migrations")
        assert spec is not None
        assert spec.submodule_search_locations
        folder = Path(spec.submodule_search_locations[0])
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.set_main_option("path_separator", "newline")
        places = "\n".join(str(place) for place in (folder / "versions", *self.more))
        config.set_main_option("version_locations", places.replace("%", "%%"))
        return config

    @cached_property
    def revisions(self) -> Sequence[Revision]:
        """Every revision, oldest first; raises `ValueError` when one does not name its step."""
        found: list[Revision] = []
        for script in ScriptDirectory.from_config(self.config()).walk_revisions():
            match vars(script.module).get("step"):
                case "before" | "after" as step:
                    found.append(Revision(script.revision, step))
                case _:
                    raise ValueError(f"revision {script.revision} has no step 'before' or 'after'")
        return found[::-1]

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
