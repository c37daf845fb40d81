"""The harness, adapters included, can be imported without the libraries that its layers forbid."""

import json
import subprocess
import sys

FORBIDDEN = {
    "alembic", "anthropic", "app", "fastapi", "openai", "procrastinate", "psycopg", "psycopg_pool", "pydantic",
    "pydantic_ai", "sqlalchemy", "starlette", "storage_pg", "uvicorn", "workers",
}  # fmt: skip

IMPORT_ALL = """
import importlib, json, pkgutil, sys
import harness
names = [m.name for m in pkgutil.walk_packages(harness.__path__, "harness.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
json.dump({"imported": names, "loaded": sorted({n.partition(".")[0] for n in sys.modules})}, sys.stdout)
"""


def test_importing_every_harness_module_loads_nothing_forbidden() -> None:
    # A process of its own: here pytest and its plugins have loaded a good part of the list.
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True
    )
    seen = json.loads(done.stdout)
    assert len(seen["imported"]) > 10
    assert FORBIDDEN.isdisjoint(seen["loaded"]), FORBIDDEN.intersection(seen["loaded"])
