"""The scenario library: what is asked, what the provider and the tools do, and when the user acts (design §14)."""

from harness.testing.scenarios.cancelled import CANCELLED
from harness.testing.scenarios.runs import RUNS
from harness.testing.scenarios.scenario import Scenario
from harness.testing.scenarios.structural import STRUCTURAL
from harness.testing.scenarios.tools import TOOLS

SCENARIOS: tuple[Scenario, ...] = (*RUNS, *TOOLS, *CANCELLED, *STRUCTURAL)

__all__ = ["SCENARIOS", "Scenario"]
