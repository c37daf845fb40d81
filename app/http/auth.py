"""Who asks: bearer keys, what they may do, and a short memory of those already checked (design §10)."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.http.problems import Problem
from app.scopes import Scope
from harness.clock import Clock
from storage_pg.api_keys import KeyOwner
from storage_pg.catalog import Catalog
from workers.logs import note

_REMEMBER_SECONDS = 5.0
_REMEMBERED = 10_000

_bearer = HTTPBearer(
    auto_error=False, scheme_name="bearerKey", description="An API key: `lw_<id>_<secret>`."
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as a route needs to know."""

    tenant_id: str
    key_id: str
    scopes: frozenset[str]


class Authenticator:
    """Checks keys against the catalogue, and believes itself for a few seconds.

    So a revoked key may work for that long. A key's own expiry is looked at every time, and only
    keys that were good are remembered.
    """

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, KeyOwner]] = OrderedDict()

    async def check(self, presented: str) -> Caller | None:
        """Whom the key speaks for; None for a key that does not work."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogatepass")).digest()
        now = self._clock.monotonic()
        known = self._known.get(digest)
        if known is None or now - known[0] > _REMEMBER_SECONDS:
            self._known.pop(digest, None)
            owner = await self._catalog.authenticate(presented)
            if owner is None:
                return None
            self._known[digest] = (now, owner)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        else:
            owner = known[1]
        key = owner.key
        if key.expires_at is not None and key.expires_at <= self._clock.now_ms():
            return None
        return Caller(key.tenant_id, key.id, frozenset(key.scopes))


def require(scope: Scope) -> Callable[..., Awaitable[Caller]]:
    """A dependency: a caller whose key has this scope."""

    async def caller(
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    ) -> Caller:
        if credentials is None:
            raise _unauthenticated("This path needs an API key: `Authorization: Bearer lw_...`.")
        # The application's services, typed where they are made.
        keys: Authenticator = request.app.state.services.keys
        found = await keys.check(credentials.credentials)
        if found is None:
            raise _unauthenticated("The API key is wrong, expired or revoked.")
        if scope not in found.scopes:
            raise Problem(
                403,
                "InsufficientScope",
                f"The API key lacks the scope {scope}.",
                fields={"scope": scope},
            )
        note(tenant=found.tenant_id)
        return found

    return caller


def _unauthenticated(detail: str) -> Problem:
    return Problem(401, "Unauthenticated", detail, headers={"WWW-Authenticate": "Bearer"})


Reader = Annotated[Caller, Depends(require("sessions:read"))]
Writer = Annotated[Caller, Depends(require("sessions:write"))]
UsageReader = Annotated[Caller, Depends(require("usage:read"))]
