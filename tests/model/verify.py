"""`python -m tests.model.verify`: checks the hosting model, and that each guard taken away is missed.

Needs `spin` (Debian's package of that name) and a C compiler; nothing else, not even the project's
own packages. docs/hosting_model.md explains the model.
"""

from __future__ import annotations

import argparse
import enum
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("hosting.pml")
DEATHS = 3
# A counter-example needs no more mishaps than this, and reads best with few.
DEATHS_TO_FAIL = 1
_DEPTH = 2_000_000
_MEGABYTES = 12_000


class Verdict(enum.Enum):
    """What a check comes to."""

    HOLDS = "holds"
    RECORD = "I1: the recorded owner does not hold the session"
    STRANDED = "I1: an accepted operation never ends"
    CIRCLE = "I1: a run goes in circles"
    FENCED = "I2: a commit of a host that lost its lease lands"
    ROWS = "I3: an open operation without its row, or a row too many"
    REPEATED = "I4: something settled is repeated"


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the checker: what is different from the protocol, and what must come of it.

    `circles` looks for a run without an end instead of a wrong state; `at_most` limits the deaths.
    """

    name: str
    macros: tuple[str, ...]
    expected: Verdict
    circles: bool = False
    at_most: int | None = None

    @property
    def label(self) -> str:
        """The row's name in the table."""
        return f"{self.name} (circles)" if self.circles else self.name


CASES = (
    Case("the protocol", (), Verdict.HOLDS),
    Case("the protocol", (), Verdict.HOLDS, circles=True),
    Case("no fence", ("NO_FENCE",), Verdict.FENCED),
    Case("... seen by what it undoes", ("NO_FENCE", "BLIND_TO_FENCE"), Verdict.REPEATED),
    Case("row outside the transaction", ("NO_ROW_IN_TX",), Verdict.ROWS),
    Case("... and no sweep", ("NO_ROW_IN_TX", "NO_SWEEP", "NO_CLAIMS"), Verdict.STRANDED),
    Case("... but the sweep", ("NO_ROW_IN_TX", "NO_CLAIMS"), Verdict.HOLDS, at_most=2),
    Case("no identity lock", ("NO_IDENTITY_LOCK",), Verdict.STRANDED),
    Case("no second dispatch", ("NO_SECOND_DISPATCH",), Verdict.STRANDED),
    Case("no release on drain", ("NO_RELEASE_ON_DRAIN",), Verdict.RECORD),
    Case("... seen at the end only", ("NO_RELEASE_ON_DRAIN", "NO_CLAIMS"), Verdict.STRANDED),
    Case("duty by events, not by level", ("EDGE_TRIGGERED",), Verdict.STRANDED),
    Case("a burial leaves the fence", ("BURIAL_KEEPS_FENCE",), Verdict.FENCED),
    Case("a failed release is ignored", ("RELEASE_ERROR_IGNORED",), Verdict.RECORD),
    Case("... seen at the end only", ("RELEASE_ERROR_IGNORED", "NO_CLAIMS"), Verdict.STRANDED),
    Case("a claim's answer is dropped", ("CLAIM_ANSWER_DROPPED",), Verdict.RECORD),
    Case("... seen at the end only", ("CLAIM_ANSWER_DROPPED", "NO_CLAIMS"), Verdict.STRANDED),
    Case("an accept is not known by its id", ("ACCEPTS_ANEW",), Verdict.REPEATED),
    Case("a row is woken, its state is not", ("WAKE_BEHIND_STATE",), Verdict.CIRCLE, circles=True),
)

# The text of a failed assertion, as the checker prints it, says which one it was.
_ASSERTIONS = (
    ("late[", Verdict.FENCED),
    ("buried", Verdict.FENCED),
    ("==row[", Verdict.ROWS),
    ("owner!=", Verdict.RECORD),
    ("!(((st[0]!=0)", Verdict.STRANDED),
    ("ran[", Verdict.REPEATED),
    ("st[", Verdict.REPEATED),
)


class CheckerFailed(RuntimeError):
    """The checker did not come to a verdict; the message is what it said."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case. `unreached` are steps of the model that never happened."""

    case: Case
    verdict: Verdict
    states: int
    seconds: float
    unreached: tuple[str, ...]
    steps: tuple[str, ...]

    @property
    def expected(self) -> bool:
        """Whether it is what had to come of it."""
        return self.verdict is self.case.expected


def missing_tools() -> str | None:
    """What must be installed first, as a sentence; None when everything is there."""
    if shutil.which("spin") is None:
        return "the model checker spin is missing; on Debian or Ubuntu: apt-get install spin"
    if shutil.which("gcc") is None:
        return "spin needs a C compiler; on Debian or Ubuntu: apt-get install gcc"
    return None


def check(case: Case, deaths: int = DEATHS, *, compile_for: str = "-O2") -> Outcome:
    """Check one case exhaustively, or up to its first counter-example, the shortest there is.

    `compile_for` is the compiler's optimization: small runs take less time to check than to optimize.
    """
    fails = case.expected is not Verdict.HOLDS
    deaths = min(deaths, DEATHS_TO_FAIL if fails else case.at_most or deaths)
    defines = [f"-D{macro}" for macro in (*case.macros, f"DEATHS={deaths}")]
    with tempfile.TemporaryDirectory(prefix="laneway-model-") as name:
        folder = Path(name)
        shutil.copy(MODEL, folder)
        _tool(folder, "spin", "-a", *defines, MODEL.name)
        how = ["-DNP"] if case.circles else ["-DSAFETY", "-DBFS"] if fails else ["-DSAFETY"]
        limit = f"-DMEMLIM={_MEGABYTES}"
        _tool(folder, "gcc", compile_for, "-w", *how, "-DNOREDUCE", limit, "-o", "pan", "pan.c")
        started = time.monotonic()
        said = _tool(folder, "./pan", f"-m{_DEPTH}", *(["-l"] if case.circles else []))
        seconds = time.monotonic() - started
        steps: list[str] = []
        if (folder / f"{MODEL.name}.trail").exists():
            told = _tool(folder, "spin", "-t", "-T", *defines, MODEL.name)
            steps = [
                line.strip() for line in told.splitlines() if re.match(r"\s+(host|lane|the)", line)
            ]
    stored = re.search(r"(\d+) states, stored", said)
    if stored is None or "search depth too small" in said or "out of memory" in said:
        raise CheckerFailed(said)
    return Outcome(
        case, _verdict(said), int(stored[1]), seconds, tuple(_unreached(said)), tuple(steps)
    )


def _tool(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CheckerFailed(f"{' '.join(command)}:\n{done.stdout}")
    return done.stdout


def _verdict(said: str) -> Verdict:
    if re.search(r"errors: 0\b", said):
        return Verdict.HOLDS
    if "non-progress cycle" in said:
        return Verdict.CIRCLE
    violated = re.search(r"assertion violated (.*) \(at depth", said)
    if violated is not None:
        for text, verdict in _ASSERTIONS:
            if text in violated[1].replace(" ", ""):
                return verdict
    raise CheckerFailed(said)


def _unreached(said: str) -> Iterable[str]:
    """Steps that no run took. Ends of processes, which have none, and the sweep's repairs, which a
    healthy system does not need, are not counted."""
    process = ""
    for line in said.splitlines():
        started = re.match(r"unreached in (?:proctype )?(\w+)", line)
        if started is not None:
            process = started[1]
        step = re.match(r"\t\S+:(\d+), state \d+, \"(.*)\"", line)
        if step is not None and process != "sweep" and step[2] != "-end-":
            yield f"{process}, line {step[1]}: {step[2]}"


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as aligned text."""
    rows = [("what is checked", "states", "seconds", "what comes of it", "")]
    for outcome in outcomes:
        verdict = "as expected" if outcome.expected else f"EXPECTED: {outcome.case.expected.value}"
        rows.append(
            (
                outcome.case.label,
                f"{outcome.states:,}",
                f"{outcome.seconds:.1f}",
                outcome.verdict.value,
                verdict,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in (1, 2) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def main(arguments: Sequence[str]) -> int:
    """Check everything, or show how one case fails; 0 when all is as expected, 2 without spin."""
    parser = argparse.ArgumentParser(prog="make verify", description=__doc__)
    parser.add_argument("--deaths", type=int, default=DEATHS, help="how many (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--show", metavar="MACRO", help="tell the counter-example without a guard")
    options = parser.parse_args(arguments)
    missing = missing_tools()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 2
    cases = [case for case in CASES if options.show is None or options.show in case.macros]
    print(f"2 hosts, 2 lanes, 1 drain, {options.deaths} deaths", flush=True)
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(lambda case: check(case, options.deaths), cases):
            outcomes.append(outcome)
            print(f"  {len(outcomes)}/{len(cases)} {outcome.case.label}", flush=True)
    print(f"\n{table(outcomes)}\n")
    if options.show is not None:
        for outcome in outcomes:
            print(outcome.case.label, *outcome.steps, sep="\n  ")
        return 0
    idle = [step for outcome in outcomes[:1] for step in outcome.unreached]
    for step in idle:
        print(f"never happened: {step}")
    wrong = [outcome for outcome in outcomes if not outcome.expected]
    for outcome in wrong:
        print(outcome.case.label, *outcome.steps, sep="\n  ")
    print("not as expected" if wrong or idle else "everything as expected")
    return 1 if wrong or idle else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
