"""The stage on which these tests play."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.stage import Stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Virtual time goes on by itself when nothing else can happen."""
    made = Stage()
    yield made
    await made.close()


@pytest.fixture
async def still() -> AsyncIterator[Stage]:
    """Virtual time goes on only when the test says so."""
    made = Stage(auto_advance=False)
    yield made
    await made.close()
