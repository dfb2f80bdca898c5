"""Certificates and roots of a step-ca.

What is asked for: our CSR, with a token that names the identity (``/1.0/sign``). A renewal is another signature: the
CA's own ``/1.0/renew`` needs the private key of the workload, which stays with it. The roots are those of
``/1.0/roots`` alone: those that it federates (``/1.0/federation``) are other CAs, which must not name workloads of this
mesh.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx
import trio
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from mesh_pilot.base.reading import as_list, as_objects, as_string
from mesh_pilot.identity.signers.remote import CaError, CaRoots, pem_certificates
from mesh_pilot.identity.signers.requests import check_names, has_names
from mesh_pilot.identity.signers.signing import SigningRequest
from mesh_pilot.identity.signers.step_ca.provisioner import KeyFault, Provisioner, provisioner_of
from mesh_pilot.identity.signers.step_ca.settings import StepCaSettings
from mesh_pilot.identity.signers.wire import CaConnection, one_line, read_private, read_secret, status_error

MOST_PAGES = 50
"""Pages of provisioners that are looked through."""

UNAUTHORIZED = 401

PEM = serialization.Encoding.PEM

InThread = Callable[..., Awaitable[Provisioner]]


class StepCa:
    """A step-ca. See ``RemoteCa``. Mutable state: the provisioner, once its key was read."""

    names_from_csr = False

    def __init__(
        self,
        settings: StepCaSettings,
        transport: httpx.AsyncBaseTransport | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        in_thread: InThread = trio.to_thread.run_sync,
    ) -> None:
        """The others but ``settings`` stand in for the network, the clock and threads in tests."""
        self._settings = settings
        self._base = f"{settings.address.rstrip('/')}/1.0"
        self.place = f"step-ca at {settings.address} (provisioner {settings.provisioner})"
        self._connection = CaConnection("step-ca", settings.certificate_files(), transport)
        self._now = now
        self._in_thread = in_thread
        self._provisioner: Provisioner | None = None
        self._reading = trio.Lock()

    def __repr__(self) -> str:
        return f"<StepCa {self.place}>"

    async def ask(self, request: SigningRequest) -> list[x509.Certificate]:
        """See ``RemoteCa``. step-ca takes a CSR without names, or with those of the token."""
        if has_names(request.csr):
            check_names(request)
        used = await self._usable_provisioner()
        try:
            answer = await self._sign(request, used)
        except CaError as error:
            if error.status != UNAUTHORIZED:
                raise
            # The provisioner may have another key by now.
            self._provisioner = None
            other = await self._usable_provisioner()
            if (other.kid, other.key.as_dict(private=True)) == (used.kid, used.key.as_dict(private=True)):
                raise
            answer = await self._sign(request, other)
        chain = as_list(answer, "certChain") or [answer.get("crt"), answer.get("ca")]
        return pem_certificates(chain, "step-ca")

    async def roots(self) -> CaRoots:
        """See ``RemoteCa``."""
        found = await self._ask("GET", "roots")
        return CaRoots(tuple(pem_certificates(as_list(found, "crts"), "step-ca")))

    async def aclose(self) -> None:
        """See ``RemoteCa``."""
        await self._connection.aclose()

    async def _sign(self, request: SigningRequest, provisioner: Provisioner) -> Mapping[str, Any]:
        names = [*([str(request.identity)] if request.identity is not None else []), *request.dns_names]
        token = provisioner.token(f"{self._base}/sign", names[0], names, request.csr, self._now())
        body = {
            "csr": request.csr.public_bytes(PEM).decode(),
            "ott": token,
            "notAfter": f"{int(request.lifetime.total_seconds())}s",
        }
        return await self._ask("POST", "sign", body)

    # -- the provisioner

    async def _usable_provisioner(self) -> Provisioner:
        async with self._reading:
            if self._provisioner is None:
                self._provisioner = await self._read_provisioner()
            return self._provisioner

    async def _read_provisioner(self) -> Provisioner:
        settings = self._settings
        about = await self._about(settings.provisioner)
        password = read_secret(settings.password_file, "the provisioner's password") if settings.password_file else ""
        if settings.key_file is not None:
            text, where = read_private(settings.key_file, "the provisioner's key"), str(settings.key_file)
        else:
            text, where = as_string(about, "encryptedKey"), "the CA"
            if not text:
                raise CaError("credential_file", f"{self.place}: the CA does not have its key; name a file in keyFile")
        kid = as_string(about, "key", "kid")
        try:
            return await self._in_thread(provisioner_of, settings.provisioner, kid, text, password)
        except KeyFault as fault:
            raise CaError("credential_file", f"{self.place}: its key in {where}: {fault}") from None

    async def _about(self, name: str) -> Mapping[str, Any]:
        """The provisioner as the CA lists it."""
        others: list[str] = []
        cursor = ""
        for _ in range(MOST_PAGES):
            page = await self._ask("GET", f"provisioners?limit=100{f'&cursor={quote(cursor)}' if cursor else ''}")
            for each in as_objects(page, "provisioners"):
                if as_string(each, "name") == name:
                    if (kind := as_string(each, "type")) != "JWK":
                        raise CaError("refused", f"{self.place} is of the type {one_line(kind)}: name one of type JWK")
                    return each
                others.append(as_string(each, "name"))
            cursor = as_string(page, "nextCursor")
            if not cursor:
                break
        known = one_line(", ".join(others[:10])) or "it has no provisioner"
        raise CaError("refused", f"{self.place} does not exist; the CA has: {known}")

    # -- one request

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        url = f"{self._base}/{path}"
        content = b"" if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        answer = await self._connection.ask(method, url, body=content, headers=headers)
        found: object = None
        with suppress(ValueError, RecursionError):
            found = json.loads(answer.body)
        what = f"step-ca, {method} {url}"
        if answer.status >= 300:
            raise status_error(what, answer, as_string(found, "message"), advice=self._advice())
        if not isinstance(found, dict):
            raise CaError("answer", f"{what}: the answer is not a JSON object; is that the address of a step-ca?")
        return found

    def _advice(self) -> Mapping[int, str]:
        name = self._settings.provisioner
        return {
            UNAUTHORIZED: f"the key must be that of provisioner {name}, the host in address one of the CA's dnsNames, "
            "and the clocks must agree; the log of the CA says which",
            403: f"provisioner {name} must allow URI names of the mesh (policy) and the lifetime "
            "(claims.maxTLSCertDuration); the log of the CA says which",
        }
