"""Reads the settings for a command, and says in plain words what is missing or wrong."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from app.cli.output import fail

if TYPE_CHECKING:
    from workers.settings import Settings


def settings(*, joins_fleet: bool, **given: Any) -> Settings:
    """The settings of this process; `given` wins over environment and file.

    A command that talks to no other host needs no cluster secret.
    """
    from pydantic import ValidationError

    from workers.settings import Settings

    # Any: values for fields of the settings, which validates them.
    values = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings(**values)
    except ValidationError as error:
        missing = {str(item["loc"][0]) for item in error.errors() if item["type"] == "missing"}
        if "cluster_secret" in missing and not joins_fleet:
            return settings(joins_fleet=True, **values, cluster_secret=secrets.token_hex(16))
        fail("; ".join(_wrong(item) for item in error.errors()))


def _wrong(item: Any) -> str:
    # Any: one error as pydantic reports it.
    field = "_".join(str(part) for part in item["loc"])
    name = f"LANEWAY_{field.upper()} ({field} in laneway.toml)"
    return f"{name} is needed" if item["type"] == "missing" else f"{name}: {item['msg']}"
