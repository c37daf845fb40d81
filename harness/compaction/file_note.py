"""The list of touched files at the end of a summary: written, bounded, and taken off again (§3.9)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.compaction.tokens import text_tokens
from harness.operation.payloads import FileOperations

_NOTE = re.compile(
    r"(?:\n\n<(read|modified)-files>\n(?:(?!</\1-files>).)*\n</\1-files>)+\Z", re.DOTALL
)


def file_details(files: FileOperations) -> dict[str, list[str]]:
    """All paths as the compaction's details: a file that was changed is not listed as read."""
    modified = sorted({*files.written, *files.edited})
    read = [path for path in files.read if path not in modified]
    return {"readFiles": read, "modifiedFiles": modified}


def file_note(files: FileOperations, budget: int) -> str:
    """The paths as the summary's end, within about `budget` tokens, the changed ones first."""
    details = file_details(files)
    modified, left = _listed(details["modifiedFiles"], budget)
    read, _ = _listed(details["readFiles"], left)
    sections = (("read-files", read), ("modified-files", modified))
    return "".join(
        f"\n\n<{tag}>\n" + "\n".join(paths) + f"\n</{tag}>" for tag, paths in sections if paths
    )


def without_file_note(summary: str) -> str:
    """The summary without its list of files, which the next one writes anew."""
    return _NOTE.sub("", summary)


def _listed(paths: Sequence[str], budget: int) -> tuple[list[str], int]:
    listed: list[str] = []
    for path in paths:
        # Only one line can be told from the next, and a note must be found again.
        line = " ".join(path.splitlines())
        cost = text_tokens(line) + 1
        if cost > budget:
            listed.append(f"(and {len(paths) - len(listed)} more)")
            return listed, 0
        budget -= cost
        listed.append(line)
    return listed, budget
