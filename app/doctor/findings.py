"""What a check of the doctor's comes to: a verdict, what was seen, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result. `advice` is empty when all is well."""

    check: str
    verdict: Verdict
    seen: str
    advice: str = ""


def ok(check: str, seen: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", seen)


def warn(check: str, seen: str, advice: str) -> Finding:
    """It works, and somebody should know."""
    return Finding(check, "warn", seen, advice)


def bad(check: str, seen: str, advice: str) -> Finding:
    """It does not work, or will not for long."""
    return Finding(check, "fail", seen, advice)


def skipped(check: str, seen: str) -> Finding:
    """It could not be looked at, because of another finding."""
    return Finding(check, "skipped", seen)
