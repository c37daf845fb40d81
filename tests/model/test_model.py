"""The hosting protocol's model in a small size: it holds, and each guard that is taken away is missed."""

from __future__ import annotations

import pytest

from tests.model.verify import CASES, Case, Outcome, Verdict, check, missing_tools, table

# One death instead of three, and each guard once: seconds instead of minutes. `make verify` does it all.
DEATHS = 1
SMALL = [case for case in CASES if len(case.macros) < 2]

_missing = missing_tools()
needs_spin = pytest.mark.skipif(_missing is not None, reason=f"{_missing}")


@needs_spin
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.label)
def test_what_comes_of_it(case: Case) -> None:
    outcome = check(case, DEATHS, compile_for="-O0")
    assert outcome.verdict is case.expected, "\n".join((table([outcome]), *outcome.steps))
    # A counter-example is told, for whoever has to understand it.
    assert bool(outcome.steps) == (case.expected is not Verdict.HOLDS)
    # Whatever holds because it never happens proves nothing.
    assert case.macros or outcome.unreached == ()


def test_a_missed_expectation_is_shown() -> None:
    wrong = Outcome(CASES[0], Verdict.STRANDED, 1, 0.0, (), ())
    assert not wrong.expected
    assert "EXPECTED: holds" in table([wrong])
