"""Expected outcomes as values: `Ok` carries a success, `Err` an expected rejection (§5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ok(Generic[T_co]):
    """The call did what it promises; `value` is what it promised."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Err(Generic[E_co]):
    """The call was declined for an expected reason; nothing was written."""

    error: E_co


Result: TypeAlias = Ok[T_co] | Err[E_co]
