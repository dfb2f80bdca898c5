"""The certificate that this server shows on its TLS port, signed like any other, renewed at half its life.

One that has not begun, because a clock was ahead when it was signed, is renewed like one that ends.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import structlog
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from mesh_pilot.rpc import CertificatePem
from mesh_pilot.security.authority.material import key_pem
from mesh_pilot.security.signing import Signer, SigningError, SigningRequest
from mesh_pilot.security.signing_requests import new_request
from mesh_pilot.security.validity import LOOK_SECONDS, ValidityPeriod, leaf_validity

log = structlog.get_logger(scope="security")

LOOPBACK = ("localhost", "127.0.0.1", "::1")

RETRY_SECONDS = 10.0


def default_names(namespace: str, addresses: Iterable[str]) -> tuple[str, ...]:
    """The names under which clients may know this server: Istio's, the host's, and the IP addresses listened on."""
    hosts = (address.rpartition(":")[0].strip("[]") for address in addresses if not address.startswith("unix:"))
    listened = (host for host in hosts if host not in ("", "0.0.0.0", "::"))
    host = socket.gethostname()
    istio = (f"istiod.{namespace}.svc", "mesh-pilot")
    return tuple(dict.fromkeys((*istio, *((host,) if host.isascii() else ()), *LOOPBACK, *listened)))


class ServerCertificate:
    """A certificate of this server. Mutable state: the one that is shown, its life, and when it is to be renewed."""

    def __init__(
        self, signer: Signer, names: tuple[str, ...], lifetime: timedelta, now: Callable[[], datetime]
    ) -> None:
        self._signer = signer
        self._names = names
        self._lifetime = lifetime
        self._now = now
        self._shown: CertificatePem | None = None
        self._validity = ValidityPeriod(now(), now())
        self._renew_at = now()
        self._wake = trio.Event()

    def __repr__(self) -> str:
        return f"<ServerCertificate {', '.join(self._names)}, renewed at {self._renew_at:%F %T}>"

    def shown(self) -> CertificatePem:
        """The certificate to show. It was renewed once."""
        assert self._shown is not None
        return self._shown

    @property
    def validity(self) -> ValidityPeriod:
        """From when until when the certificate is in force."""
        return self._validity

    def renew_soon(self) -> None:
        """Renew it now: another CA signs."""
        self._renew_at = self._now()
        self._wake.set()

    async def renew(self) -> None:
        """Get a certificate for a new key. Raises SigningError; the last one then stays."""
        key = ec.generate_private_key(ec.SECP256R1())
        request = SigningRequest(
            new_request(key), self._lifetime, is_followed=True, dns_names=self._names, evidence="this server"
        )
        signed = await self._signer.sign(request)
        self._shown = CertificatePem(certificate=signed.chain, key=key_pem(key))
        self._validity = leaf_validity(signed.chain)
        self._renew_at = signed.not_before + (signed.not_after - signed.not_before) / 2

    async def run(self) -> None:
        """Renew it in time, for ever."""
        while True:
            self._wake = trio.Event()
            if (seconds := self._seconds_to_renewal()) > 0:
                await self._look_after(seconds)
                continue
            if not self._validity.has_begun(self._now()):
                log.warning(
                    "this server's certificate has not begun; renewing it", begins=f"{self._validity.begins:%F %T}"
                )
            try:
                await self.renew()
            except SigningError as error:
                log.warning("this server's certificate was not renewed; the last one stays in force", reason=str(error))
                await trio.sleep(RETRY_SECONDS)
            else:
                if self._seconds_to_renewal() <= 0:  # the signer's clock differs from ours
                    await self._look_after(LOOK_SECONDS)

    def _seconds_to_renewal(self) -> float:
        """The time to the next renewal by the clock of now; 0 if it is due."""
        now = self._now()
        return max(0.0, (self._renew_at - now).total_seconds()) if self._validity.has_begun(now) else 0.0

    async def _look_after(self, seconds: float) -> None:
        """Wait for ``seconds``, until the next look at the wall clock, or until the signer changes."""
        with trio.move_on_after(min(seconds, LOOK_SECONDS)):
            await self._wake.wait()
