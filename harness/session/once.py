"""One effect of a call that its caller may repeat: what it made is noted in the commit that makes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from harness.context import Context
from harness.errors import HarnessError
from harness.operation.step import Step
from harness.storage.address import Value
from harness.storage.protocol import StoredValue
from harness.storage.writes import Write, set_value

T = TypeVar("T")


class ReadsValues(Protocol):
    """Whatever reads a session's values: a lane's tree, a storage."""

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        """The current value, or None."""
        ...


class Superseded(HarnessError):
    """A later call that carries the same took this one's place; that one has the answer."""

    def __init__(self) -> None:
        super().__init__(Superseded.__doc__)


class OnceUnknown(HarnessError):
    """What a call before this one made could not be looked up, so nothing was done. Try again."""


@dataclass(frozen=True, slots=True)
class Once:
    """However many calls on one lane carry it, one of them takes effect and all have its answer.

    `made` says what a call before this one made (its id, or a lane's name), None when none did; it
    is asked on the lane's line, right before the commit, and may raise `Superseded` and `OnceUnknown`,
    which reach the caller: nothing is done then. `note` is the write that lets it know.
    """

    made: Callable[[Context], Awaitable[str | None]]
    note: Callable[[str], Write]


def once_at(tree: ReadsValues, address: Value[str]) -> Once:
    """Keep what a call made as a value of the application's own, in the session.

    The application deletes the value when nobody will repeat the call any more.
    """

    async def made(context: Context) -> str | None:
        stored = await tree.get_value(address, context)
        return None if stored is None else stored.value

    return Once(made, lambda made_id: set_value(address, made_id))


async def made_before(once: Once | None, context: Context) -> str | None:
    """What an earlier call made; None when there was none, or when calls are not told apart."""
    return None if once is None else await once.made(context)


def noting(step: Step, once: Once | None, made: str) -> Step:
    """The step, with the note of what it makes."""
    if once is None:
        return step
    return Step((*step.writes, once.note(made)), step.projection, step.events)
