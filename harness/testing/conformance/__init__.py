"""One suite that every storage backend passes with the same results (§9.3, design §14).

Give a `backend` fixture that returns a `StorageBackend`, and subclass `StorageConformance` in a test
module; for repositories a `repositories` fixture, a `RepositoryBackend` and `RepositoryConformance`.
Call `pytest.register_assert_rewrite("harness.testing.conformance")` before importing it to
see the values of failed comparisons.
"""

from harness.testing.conformance.backend import Capabilities, StorageBackend
from harness.testing.conformance.branches import BranchConformance
from harness.testing.conformance.forks import ForkConformance
from harness.testing.conformance.inventory import InventoryConformance
from harness.testing.conformance.lifecycle import LifecycleConformance
from harness.testing.conformance.repositories import LifecycleOfSessions, RepositoryBackend
from harness.testing.conformance.rewrites import RewriteConformance
from harness.testing.conformance.text import TextConformance
from harness.testing.conformance.transactions import TransactionConformance
from harness.testing.conformance.values import ValueConformance

__all__ = [
    "Capabilities",
    "RepositoryBackend",
    "RepositoryConformance",
    "StorageBackend",
    "StorageConformance",
]


class StorageConformance(
    TransactionConformance,
    ValueConformance,
    BranchConformance,
    InventoryConformance,
    TextConformance,
    LifecycleConformance,
):
    """Everything a `Storage` must do."""


class RepositoryConformance(LifecycleOfSessions, ForkConformance, RewriteConformance):
    """Everything a `SessionRepo` must do."""
