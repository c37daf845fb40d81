"""One line of a benchmark's report, and how it is shown and stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """A number; with a bar it is also a judgement. `at_most` turns the bar from floor to ceiling."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    at_most: bool = False

    @property
    def ok(self) -> bool | None:
        """Whether the bar is met; None without a bar."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def as_json(self) -> dict[str, object]:
        """The stored form."""
        plain = asdict(self)
        del plain["at_most"]
        return {**plain, "ok": self.ok}


def share_of(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the ordered values lies."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def table(rows: Sequence[dict[str, object]]) -> str:
    """The rows as aligned text."""
    lines = [
        (
            str(row["name"]),
            f"{row['value']:.3f}" if isinstance(row["value"], float) else str(row["value"]),
            str(row["unit"]),
            "" if row["bar"] is None else str(row["bar"]),
            {True: "ok", False: "MISSED", None: ""}[_judgement(row)],
        )
        for row in rows
    ]
    header = ("measure", "value", "unit", "bar", "")
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in (1, 3) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [header, *lines]
    )


def _judgement(row: dict[str, object]) -> bool | None:
    ok = row["ok"]
    return ok if isinstance(ok, bool) else None
