"""`python -m tests.bench [name ...]`: runs the benchmarks, prints a table, writes bench.json."""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import sys
import time
from pathlib import Path

import tests.bench
from tests.bench.measure import table

_HELPERS = frozenset({"__main__", "measure", "backends", "requests"})


def names() -> list[str]:
    """Every benchmark: a module here with an async `run`."""
    found = [module.name for module in pkgutil.iter_modules(tests.bench.__path__)]
    return sorted(name for name in found if name not in _HELPERS)


def main(wanted: list[str]) -> int:
    """Run the wanted benchmarks (all by default). 1 when a bar is missed, 2 for an unknown name."""
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names())}")
        return 2
    rows: list[dict[str, object]] = []
    for name in wanted or names():
        print(f"{name} ...", flush=True)
        started = time.monotonic()
        module = importlib.import_module(f"tests.bench.{name}")
        measured = asyncio.run(module.run())
        rows += measured
        print(table(measured))
        print(f"({time.monotonic() - started:.0f} s)\n", flush=True)
    Path("bench.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    missed = [row["name"] for row in rows if row["ok"] is False]
    print(
        f"{len(rows)} measures in bench.json; bars missed: {', '.join(map(str, missed)) or 'none'}"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
