"""The certificate that this server shows on its TLS port, signed like any other, renewed at half its life
and when it should have other names.

One that has not begun, because a clock was ahead when it was signed, is renewed like one that ends.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import structlog
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from mesh_pilot.identity.authority.material import key_pem
from mesh_pilot.identity.signers.requests import new_request
from mesh_pilot.identity.signers.signing import Signer, SigningError, SigningRequest
from mesh_pilot.identity.trust.validity import LOOK_SECONDS, ValidityPeriod, leaf_validity
from mesh_pilot.net.rpc import CertificatePem
from mesh_pilot.net.rpc.net import machine_addresses

log = structlog.get_logger(scope="security")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ANY = ("", "0.0.0.0", "::")

RETRY_SECONDS = 10.0


def default_names(
    namespace: str, addresses: Iterable[str], *, revision: str = "", discovery_address: str = ""
) -> tuple[str, ...]:
    """The names under which clients may know a server of ours: those of its Service in a Kubernetes, the host's, the
    IP addresses listened on, and the host of ``discoveryAddress``, which agents are told.

    xDS and webhooks have the same, so that no address that works for one is refused by the other. ``addresses`` are
    those listened on; where that is any address of the machine, all that it has now are names.
    """
    services = ("istiod", "mesh-pilot", *((f"istiod-{revision}",) if revision not in ("", "default") else ()))
    hosts = [_host(address) for address in addresses if not address.startswith("unix:")]
    listened = [host for host in hosts if host not in _ANY]
    own = machine_addresses() if len(listened) < len(hosts) else ()
    told = _host(discovery_address)
    names = (
        *(f"{service}.{namespace}.svc" for service in services),
        "mesh-pilot",
        socket.gethostname(),
        *LOOPBACK,
        *listened,
        *own,
        told,
    )
    return tuple(name for name in dict.fromkeys(names) if name and name.isascii())


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


class ServerCertificate:
    """A certificate of this server.

    Mutable state: the one that is shown with its names and its life, and when it is to be renewed.
    """

    def __init__(
        self, signer: Signer, names: Callable[[], tuple[str, ...]], lifetime: timedelta, now: Callable[[], datetime]
    ) -> None:
        """``names`` gives those that a certificate should have now."""
        self._signer = signer
        self._wanted = names
        self._names: tuple[str, ...] = ()
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

    def follow_names(self) -> None:
        """Renew it now if it should have other names than it has."""
        if set(self._wanted()) != set(self._names):
            self.renew_soon()

    async def renew(self) -> None:
        """Get a certificate for a new key. Raises SigningError; the last one then stays."""
        key, names = ec.generate_private_key(ec.SECP256R1()), self._wanted()
        request = SigningRequest(
            new_request(key, dns_names=names), self._lifetime, is_followed=True, dns_names=names, evidence="this server"
        )
        signed = await self._signer.sign(request)
        self._names = names
        self._shown = CertificatePem(certificate=signed.chain, key=key_pem(key))
        self._validity = leaf_validity(signed.chain)
        self._renew_at = signed.not_before + (signed.not_after - signed.not_before) / 2

    async def run(self) -> None:
        """Renew it in time, forever."""
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
                log.warning("this server's certificate was not renewed; the last one is kept", reason=str(error))
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
