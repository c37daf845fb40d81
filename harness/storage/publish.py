"""Puts a complete file in its place at once, so that a crash leaves the old state or the new one."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import InvalidArgument


def staging_path(path: Path) -> Path:
    """Where a file is built before it takes its place; in the same folder, so that a rename is atomic."""
    return path.with_name(f".{path.name}.{os.getpid()}.building")


@contextmanager
def staging(path: Path) -> Generator[Path]:
    """A staging path for the block; whatever the block left there when it failed is removed."""
    staged = staging_path(path)
    try:
        staged.unlink(missing_ok=True)
        yield staged
    except BaseException:
        with suppress(OSError):
            staged.unlink(missing_ok=True)
        raise


def publish(staged: Path, path: Path, *, replace: bool) -> None:
    """Make the staged file durable and move it to `path`.

    Raises `InvalidArgument` when something is there already, unless `replace`.
    """
    sync(staged)
    if replace:
        staged.replace(path)
    else:
        try:
            # A hard link refuses to replace what is there; a rename would not.
            path.hardlink_to(staged)
        except FileExistsError as error:
            raise InvalidArgument(f"{path} exists already") from error
        finally:
            staged.unlink()
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
