"""Every repository gives the same answers."""

from __future__ import annotations

from harness.testing.conformance import RepositoryConformance


class TestRepositories(RepositoryConformance):
    """The shipped suite, over the repositories of this folder's conftest."""
