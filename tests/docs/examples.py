"""Takes the programs and their expected output out of a page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

_EXAMPLE = re.compile(
    r"(?:<!-- needs: (?P<needs>[^>]*?) -->\n)?```python\n(?P<code>.*?)```\n"
    r"(?:```text\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:
    """One program of a page. `output` may contain `...` for what differs from run to run."""

    title: str
    code: str
    output: str
    needs: str

    def matches(self, printed: str) -> bool:
        """Whether the program printed what the page says."""
        pattern = ".*".join(re.escape(part) for part in self.output.split("..."))
        return re.fullmatch(pattern, printed, re.DOTALL) is not None


def examples(page: str) -> list[Example]:
    """The programs of a page in order; each is named after the heading above it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [
        Example(
            title=_HEADING.findall(text[: match.start()])[-1],
            code=match["code"],
            output=match["output"] or "",
            needs=match["needs"] or "",
        )
        for match in _EXAMPLE.finditer(text)
    ]
