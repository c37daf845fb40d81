"""A release that does not exist yet: two migrations after the last real one, written into a folder."""

from __future__ import annotations

from pathlib import Path

from storage_pg.release import THIS_BUILD, Release

# What such a release might do: add before its deploy, take away after it what this build needs.
_BEFORE = """
ALTER TABLE laneway.hosts ADD COLUMN build text;
ALTER TABLE laneway.open_operations ADD COLUMN build text;
ALTER TABLE laneway.sessions ADD COLUMN build integer NOT NULL DEFAULT 0;
CREATE FUNCTION laneway.whereabouts(for_tenant uuid, for_session uuid, build text)
RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid';
"""
_AFTER = "DROP FUNCTION laneway.whereabouts(uuid, uuid);"

_MODULE = """
from alembic import op

revision = {revision!r}
down_revision = {down!r}
step = {step!r}


def upgrade():
    op.execute({script!r})
"""


def next_release(folder: Path) -> Release:
    """This build's chain with a step before and a step after the next deploy."""
    down = THIS_BUILD.head
    for revision, step, script in (("9001", "before", _BEFORE), ("9002", "after", _AFTER)):
        text = _MODULE.format(revision=revision, down=down, step=step, script=script)
        (folder / f"{revision}.py").write_text(text)
        down = revision
    return Release((folder,))
