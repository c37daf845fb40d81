"""Rows of an index as results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.search.service import EntryHit, SessionHit
from harness.search.text import Phrase, make_snippet


# Any: a row's columns are what the statement selects.
def entry_hit(row: Sequence[Any], phrases: tuple[Phrase, ...]) -> EntryHit:
    """A hit from session, entry, type, timestamp, score and text."""
    session_id, entry_id, type_, timestamp, score, text = row[:6]
    return EntryHit(
        session_id=session_id,
        entry_id=entry_id,
        entry_type=type_,
        timestamp=timestamp,
        score=score,
        snippet=make_snippet(text, phrases),
    )


def session_hit(row: Sequence[Any], phrases: tuple[Phrase, ...]) -> SessionHit:
    """A session from its best entry's columns and the number of matches."""
    top = entry_hit(row, phrases)
    return SessionHit(session_id=top.session_id, score=top.score, matches=row[6], top=top)
