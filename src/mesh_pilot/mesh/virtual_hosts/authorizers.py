"""Authorizers: the servers that rules of HTTPRoutes ask whether a request may pass (filter ``ExternalAuth``).

A router has a filter for each authorizer, which does nothing but for the routes that name it. If a route table and the
filters before it were replaced one after the other, requests on connections that are older than the newer of the two
could pass unasked. So a table belongs to its filters: its name has a digest of them, and a change of authorizers gives
the listener another table, while older connections end with theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.mesh.listeners.gateway_servers import GatewayServer
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.sidecar_scope import visible_virtual_services
from mesh_pilot.mesh.virtual_services.rules import http_rules
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world.view import View

_SEPARATOR = "|auth-"


@attrs.frozen(cache_hash=True, order=True)
class Authorizer:
    """A server that is asked, and what it is told. Rules that say the same have the same one."""

    host: str
    """Full name."""
    port: int
    grpc: bool
    """Envoy's authorization service over gRPC; else HTTP."""
    path_prefix: str
    allowed_headers: tuple[str, ...]
    """In lower case; see ``ExternalAuth.allowed_headers``."""
    allowed_response_headers: tuple[str, ...]
    max_body: int
    """Bytes; 0: no body."""

    @property
    def name(self) -> str:
        """Text that no other authorizer has: ``auth.shop.svc.cluster.local:9000/1f0c3a5b8e7d6c90``."""
        return f"{self.host}:{self.port}/{_digest(attrs.astuple(self))}"


def authorizers_of(rule: api.HttpRoute) -> Iterator[Authorizer]:
    """The authorizers of a rule, in the order in which they are asked."""
    for auth in rule.external_auth:
        assert auth.destination is not None and auth.destination.port is not None, "the conversion sets both"
        yield Authorizer(
            host=auth.destination.host,
            port=auth.destination.port.number,
            grpc=auth.grpc,
            path_prefix=auth.path_prefix,
            allowed_headers=_names(auth.allowed_headers),
            allowed_response_headers=_names(auth.allowed_response_headers),
            max_body=auth.max_body,
        )


@derived
def table_authorizers(view: View, scope: OutboundScope, servers: tuple[GatewayServer, ...]) -> tuple[Authorizer, ...]:
    """The authorizers of the rules in the route table that these servers share; each once, in a fixed order."""
    names = dict.fromkeys(server.gateway_name for server in servers)
    heads = (head for name in names for head in visible_virtual_services(view, scope.namespace, name))
    # In one rule several are asked in the order of their filters, which is that of the router's: the fixed one.
    return tuple(sorted({each for head in heads for each in _of_virtual_service(view, head.key)}))


@derived
def _of_virtual_service(view: View, key: ConfigKey) -> tuple[Authorizer, ...]:
    return tuple(dict.fromkeys(each for rule in http_rules(view, key) for each in authorizers_of(rule.spec)))


def table_name(plain: str, authorizers: tuple[Authorizer, ...]) -> str:
    """The name of a router's table: as Istio has it, and with authorizers a digest of them."""
    return f"{plain}{_SEPARATOR}{_digest(authorizers)}" if authorizers else plain


def plain_table_name(name: str) -> str:
    """The name of a router's table without the digest."""
    return name.partition(_SEPARATOR)[0]


def _names(headers: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name.lower() for name in headers}))


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
