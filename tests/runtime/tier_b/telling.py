"""The recurring parts of a run's journal, by name."""

from __future__ import annotations

from collections.abc import Sequence

from tests.runtime.stage import Stage

FRAMES = "append pi.pending.assistant_frame"

ACCEPTED = [
    (
        "TX entry user; set pi.lane.leaf; set pi.op.meta; set pi.op.state starting; "
        "set pi.lane.state busy"
    ),
    "run_start",
    "message_start user",
    "message_end user",
    "entry_added user",
]
STARTED = ["TX set pi.op.state checkpoint need_assistant"]


def asked(attempt: int = 1) -> list[str]:
    """Intent before effect: the request goes out after two commits."""
    opening = ["turn_start"] if attempt == 1 else [f"retry_start {attempt}"]
    return [
        f"TX set pi.op.state assistant ready {attempt}",
        f"TX set pi.op.state assistant pending {attempt}",
        *opening,
        "request",
    ]


def answered(ended: str, then: str, *, began: str = "pending", stored: str = "") -> list[str]:
    """A response and the one transaction that settles it."""
    kept = stored or ended
    return [
        f"message_start assistant:{began}",
        f"message_end assistant:{ended}",
        (
            f"TX entry assistant:{kept}; usage; set pi.lane.leaf; drop pi.pending.assistant_frame; "
            f"set pi.op.state {then}"
        ),
        f"entry_added assistant:{kept}",
        "usage",
    ]


def placed(*kinds: str) -> list[str]:
    """What is reported of messages that a transaction placed."""
    lines: list[str] = []
    for kind in kinds:
        lines += [f"message_start {kind}", f"message_end {kind}", f"entry_added {kind}"]
    return lines


def ended(outcome: str, *deleted: str) -> list[str]:
    """The terminal transaction of a run."""
    more = "".join(f"delete {namespace}; " for namespace in deleted)
    return [
        (
            f"TX delete pi.op.meta; delete pi.op.state; {more}set pi.lane.lastResult {outcome}; "
            "set pi.lane.state idle"
        ),
        f"run_end {outcome}",
    ]


def told(stage: Stage) -> list[str]:
    """The journal without frames and message updates, which have tests of their own."""
    return [
        line
        for line in stage.journal
        if FRAMES not in line.removeprefix("TX ")[: len(FRAMES)]
        and not line.startswith("message_update")
    ]


def since(stage: Stage, line: str) -> Sequence[str]:
    """What was told after the first such line."""
    lines = told(stage)
    return lines[lines.index(line) + 1 :]
