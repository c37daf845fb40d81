"""How long one random play is, and that nothing but its own rules judges it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

PLAY = settings(
    max_examples=8,
    stateful_step_count=80,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=tuple(HealthCheck),  # pyright: ignore[reportArgumentType]  # an enum is iterable
)
