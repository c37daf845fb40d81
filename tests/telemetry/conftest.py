"""A recording, and the stage that harness tests play on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.stage import Stage
from tests.telemetry.recording import Recording


@pytest.fixture
def recording() -> Recording:
    """Spans of this test."""
    return Recording()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Virtual time goes on by itself when nothing else can happen."""
    made = Stage()
    yield made
    await made.close()
