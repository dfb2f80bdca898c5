"""The credentials that are to be ordered: those of the mesh config, with the hosts of the Gateways that name them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import AcmeCredential, MeshConfig
from mesh_pilot.api.istio.networking.v1alpha3 import Server
from mesh_pilot.mesh.names.resources import GATEWAY_CREDENTIAL_PREFIX
from mesh_pilot.model.config import Config
from mesh_pilot.model.hosts import host_covers
from mesh_pilot.model.service import Protocol as ServerProtocol

CredentialName = tuple[str, str]
"""Namespace and name."""

NO_HOSTS = "no Gateway of its namespace names it: list its hosts under acme in the mesh config"


@attrs.frozen
class AcmeServer:
    """A server of certificates."""

    directory: str
    contacts: tuple[str, ...] = ()
    ca_certificates: str = ""
    """A file; empty: the CAs that the system trusts."""


@attrs.frozen
class WantedCertificate:
    """A credential that is to be ordered."""

    issuer: AcmeServer
    hosts: tuple[str, ...]
    """Sorted."""
    problem: str = ""
    """Why it cannot be ordered, with what to do; empty if it can."""


class CertificateDemand(Protocol):
    """The credentials that are wanted. Whoever changes them calls ``AcmeSource.wake``."""

    def wanted_certificates(self) -> Mapping[CredentialName, WantedCertificate]: ...

    def is_complete(self) -> bool:
        """True once no other source can add to them at the start."""


def wanted_by(
    mesh: MeshConfig, gateways: Iterable[Config], elsewhere: Callable[[CredentialName], str]
) -> dict[CredentialName, WantedCertificate]:
    """The credentials that a mesh config asks for. ``elsewhere``: the source that has a credential, too; or empty."""
    acme = mesh.acme
    if acme is None:
        return {}
    issuer = AcmeServer(acme.directory, tuple(acme.contacts), acme.ca_certificates)
    known = list(gateways)
    return {
        name: _wanted(name, asked, issuer, known, elsewhere(name))
        for name, asked in ((name_of(each, mesh.root_namespace), each) for each in acme.credentials)
    }


def name_of(asked: AcmeCredential, root_namespace: str) -> CredentialName:
    namespace, _, name = asked.name.rpartition("/")
    return namespace or root_namespace, name


def _wanted(
    name: CredentialName, asked: AcmeCredential, issuer: AcmeServer, gateways: list[Config], elsewhere: str
) -> WantedCertificate:
    hosts = {host.lower() for host in asked.hosts or _hosts_of(name, gateways)}
    provable = tuple(sorted(host for host in hosts if "*" not in host))
    wanted = WantedCertificate(issuer, provable)
    if elsewhere:
        text = f"the source {elsewhere} has a credential of this name, which is served: remove either of them"
    elif not provable:
        text = "all hosts are wildcards, which http-01 cannot prove: list names" if hosts else NO_HOSTS
    elif unanswered := [host for host in provable if not _is_answered(host, gateways)]:
        text = (
            f"no plaintext HTTP server of a Gateway has the host {unanswered[0]}, so nothing could answer the issuer: "
            "add one for port 80, with httpsRedirect if you like"
        )
    else:
        return wanted
    return attrs.evolve(wanted, problem=text)


def _hosts_of(name: CredentialName, gateways: list[Config]) -> Iterator[str]:
    """The hosts of the servers that name a credential, of Gateways in its namespace.

    Those of others do not count: one host that cannot be proven fails the order for all.
    """
    namespace, plain = name
    forms = {plain, f"{namespace}/{plain}", f"{GATEWAY_CREDENTIAL_PREFIX}{namespace}/{plain}"}
    for config in gateways:
        for server in config.spec.servers if config.namespace == namespace else ():
            tls = server.tls
            if tls is not None and forms.intersection((tls.credential_name, *tls.credential_names)):
                yield from _plain_hosts(server)


def _is_answered(host: str, gateways: list[Config]) -> bool:
    return any(
        server.port is not None
        and ServerProtocol.parse(server.port.protocol).is_http
        and any(host_covers(name, host) for name in _plain_hosts(server))
        for config in gateways
        for server in config.spec.servers
    )


def _plain_hosts(server: Server) -> Iterator[str]:
    return (host.rpartition("/")[2].lower() for host in server.hosts)
