"""How hosts prove to each other that they belong to the same deployment (design §6)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from harness.clock import Clock

SIGNATURE = "x-laneway-signature"
STAMP = "x-laneway-time"
HOST = "x-laneway-host"
PROOF = "x-laneway-proof"

# How far the clocks of two hosts may be apart, and how long a signature is good (milliseconds).
_TOLERANCE_MS = 60_000


class ClusterSecret:
    """Signs what is asked of another host and checks what is asked of this one.

    A signature covers the path, the time, the host it is meant for and the body, so it cannot be used
    for anything else; the answer carries a proof over the signature, so a stranger at a host's
    old address is not believed.
    """

    def __init__(self, secret: str, clock: Clock) -> None:
        self._key = secret.encode()
        self._clock = clock

    def sign(self, path: str, host_id: str, body: bytes) -> dict[str, str]:
        """The headers of a request to that host."""
        stamp = str(self._clock.now_ms())
        return {STAMP: stamp, HOST: host_id, SIGNATURE: self._signature(path, stamp, host_id, body)}

    def check(self, path: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether a request comes from a host of this deployment, lately."""
        stamp, host_id = headers.get(STAMP, ""), headers.get(HOST, "")
        if not stamp.isascii() or not stamp.isdigit() or len(stamp) > 15:
            return False
        if abs(self._clock.now_ms() - int(stamp)) > _TOLERANCE_MS:
            return False
        expected = self._signature(path, stamp, host_id, body)
        return _same(expected, headers.get(SIGNATURE, ""))

    def signed_at(self, headers: Mapping[str, str]) -> int:
        """When a request that was checked was signed, by its sender's clock (Unix ms)."""
        return int(headers[STAMP])

    def prove(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The header of the answer to a request with these headers."""
        return {PROOF: self._proof(headers.get(SIGNATURE, ""))}

    def proven(self, sent: Mapping[str, str], answered: Mapping[str, str]) -> bool:
        """Whether an answer comes from a host of this deployment."""
        return _same(self._proof(sent[SIGNATURE]), answered.get(PROOF, ""))

    def _signature(self, path: str, stamp: str, host_id: str, body: bytes) -> str:
        text = f"request\n{path}\n{stamp}\n{host_id}\n".encode("utf-8", "surrogateescape")
        return self._digest(text + hashlib.sha256(body).digest())

    def _proof(self, signature: str) -> str:
        return self._digest(f"answer\n{signature}".encode("utf-8", "surrogateescape"))

    def _digest(self, text: bytes) -> str:
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


def _same(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogateescape"))
