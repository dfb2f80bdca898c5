"""The seam between the source and the protocol: what an order is given, gives, and says if it fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Protocol

import attrs

from mesh_pilot.model.events import ChallengeAnswer
from mesh_pilot.sources.acme.stored import Account
from mesh_pilot.sources.acme.wanted import AcmeServer


@attrs.frozen
class IssuedCertificate:
    """A certificate with its chain, and its key, as PEM."""

    chain: bytes
    private_key: bytes = attrs.field(repr=False)


class IssuerError(Exception):
    """An order that failed, in one line."""

    def __init__(self, reason: str, code: str = "", told: timedelta | None = None) -> None:
        """``code``: the type of the error in RFC 8555, such as ``rateLimited``; ``told``: the wait it asks for."""
        super().__init__(reason)
        self.code = code
        self.told = told


Keep = Callable[[Account], Awaitable[None]]
Show = Callable[[tuple[ChallengeAnswer, ...]], Awaitable[None]]
"""Takes the answers, sorted; returns once our gateways give them."""


class Obtain(Protocol):
    """An order; see ``protocol.obtain``."""

    async def __call__(
        self, issuer: AcmeServer, account: Account | None, hosts: Sequence[str], keep: Keep, show: Show
    ) -> IssuedCertificate: ...
