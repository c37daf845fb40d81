"""What an API key may do."""

from typing import Literal, TypeAlias

Scope: TypeAlias = Literal["sessions:read", "sessions:write", "usage:read", "admin"]
SCOPES: tuple[Scope, ...] = ("sessions:read", "sessions:write", "usage:read", "admin")
