"""ReferenceGrants: which kinds of objects of a namespace may refer to which objects of another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.gateway_api.values import GROUP
from mesh_pilot.model.config import Config

_FROM = frozenset(("Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"))
_TO = frozenset((("", "ConfigMap"), ("", "Secret"), ("", "Service")))

ALL = ""
"""In place of a name: all objects of a kind."""


class Permission(NamedTuple):
    """One thing that a ReferenceGrant permits."""

    kind: str
    """As written."""
    namespace: str
    to_kind: str
    to_namespace: str
    to_name: str
    """``ALL`` or the name of the only object."""


def permissions(grant: Config) -> Iterator[Permission]:
    """The permissions that a ReferenceGrant gives, as far as they concern kinds that we know."""
    spec: api.ReferenceGrantSpec = grant.spec
    for source in spec.from_:
        if source.group != GROUP or source.kind not in _FROM:
            continue
        for target in spec.to:
            if (target.group or "", target.kind) in _TO:
                name = ALL if target.name is None else target.name
                yield Permission(source.kind, source.namespace, target.kind, grant.namespace, name)
