"""Names in Consul's own mesh (Connect): SPIFFE ids of services, and the Secrets with its roots and leaves.

A SPIFFE id there is ``spiffe://UUID.consul/ns/default/dc/dc1/svc/web``, and so no identity of ours.
"""

from __future__ import annotations

import attrs

from mesh_pilot.model.spiffe import SCHEME

CONNECT_ROOTS = "consul-connect-roots"
"""The Secret with the roots."""


@attrs.frozen
class ConnectId:
    """A service's name."""

    trust_domain: str
    datacenter: str
    service: str

    def __str__(self) -> str:
        return f"{connect_prefix(self.trust_domain)}{self.datacenter}/svc/{self.service}"

    @property
    def sni(self) -> str:
        """The server name by which proxies there call the service."""
        return f"{self.service}.default.{self.datacenter}.internal.{self.trust_domain}"


def connect_prefix(trust_domain: str) -> str:
    """The beginning of all SPIFFE ids of a trust domain, of whichever datacenter."""
    return f"{SCHEME}{trust_domain}/ns/default/dc/"


def parse_connect_id(uri: str) -> ConnectId | None:
    """The name that a SPIFFE id says, or None for any other string."""
    match uri.removeprefix(SCHEME).split("/"):
        case [domain, "ns", "default", "dc", datacenter, "svc", service] if uri.startswith(SCHEME):
            return ConnectId(domain, datacenter, service)
        case _:
            return None


def connect_leaf(service: str) -> str:
    """The name of the Secret with a service's leaf. No ``credentialName`` leads to it."""
    return f"consul-connect/{service}"


def connect_caller(namespace: str, account: str) -> str:
    """The name of the Secret with the leaf that proxies of a service account present."""
    return f"consul-connect-as/{namespace}/{account}"
