"""A fleet on a database of its own, as the tests of the workers have it."""

from tests.workers.conftest import fleet

__all__ = ["fleet"]
