"""A child process that does not outlive its parent: it stops when standard input ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated

import typer

UntilStdinEnds = Annotated[
    bool,
    typer.Option("--until-stdin-ends", hidden=True, help="Stop when standard input ends."),
]

_HARD_SECONDS = 5.0


def stop_with_parent(wanted: bool) -> None:
    """Stop this process, gently and then not, when its standard input ends."""
    if wanted:
        threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    # The database dies with the parent too: there is nothing to wait for that could still be saved.
    timer = threading.Timer(_HARD_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
