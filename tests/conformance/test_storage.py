"""Every backend gives the same answers."""

from __future__ import annotations

from harness.testing.conformance import StorageConformance


class TestStorage(StorageConformance):
    """The shipped suite, over the backends of this folder's conftest."""
