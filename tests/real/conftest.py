"""The real model server, started once for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from app.local_model import local_model_server

WINDOW = 2_048


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def local_url() -> AsyncIterator[str]:
    """The base URL of a real small model with a window of 2,048 tokens for each request."""
    async with local_model_server(context=WINDOW, slots=2) as url:
        yield url
