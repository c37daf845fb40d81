"""A Postgres server out of a wheel, for `laneway dev` and the tests."""

from storage_pg.embedded.binaries import MAJORS, EmbeddedUnavailable
from storage_pg.embedded.server import DataDirectoryInUse, EmbeddedServer, ServerFailed

__all__ = [
    "MAJORS",
    "DataDirectoryInUse",
    "EmbeddedServer",
    "EmbeddedUnavailable",
    "ServerFailed",
]
