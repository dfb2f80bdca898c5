"""Random objects of a kind, as people write them, that validation accepts.

A random message breaks some rule nearly always. So an object is fixed: the field that a problem names is written
again, or left out, until nothing is wrong with the object.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import attrs
import betterproto2

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.api.istio.networking.v1alpha3 import VirtualService
from mesh_pilot.istio.kinds import ISTIO_KINDS, KINDS, Api
from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, descriptor_of
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.istio.reading.mesh import decode_mesh, decode_networks
from mesh_pilot.model.config import ConfigError, Origin, Problem, Severity
from mesh_pilot.model.events import Item, MeshConfigValue, MeshNetworksValue
from tests.door.fields import FIELDS, MAPS
from tests.door.patches import random_patch
from tests.door.values import Values

Json = dict[str, Any]

MESH, NETWORKS = "MeshConfig", "MeshNetworks"

OWN = tuple(kind.name for kind in KINDS.values() if kind.api is Api.OWN)
NAMES = (*ISTIO_KINDS, *OWN, MESH, NETWORKS)
"""The kinds of objects, and the two settings of the mesh."""

_DEPTH = 9
_TRIES = 40
_ORIGIN = Origin("door", "door.yaml")

_USUAL: Mapping[str, Sequence[str]] = {
    "VirtualService": ("hosts", "gateways"),
    "HttpRoute": (),
    "HttpRouteDestination": ("destination",),
    "RouteDestination": ("destination",),
    "HttpMirrorPolicy": ("destination",),
    "TcpRoute": ("route",),
    "TlsRoute": ("match", "route"),
    "TlsMatchAttributes": ("sniHosts",),
    "Destination": ("host",),
    "PortSelector": ("number",),
    "Gateway": ("servers", "selector"),
    "Server": ("port", "hosts"),
    "Port": ("number", "protocol", "name"),
    "ServicePort": ("number", "protocol", "name"),
    "SidecarPort": ("number", "protocol", "name"),
    "ServiceEntry": ("hosts", "ports", "resolution", "location"),
    "WorkloadEntry": ("address",),
    "DestinationRule": ("host", "trafficPolicy"),
    "Subset": ("name",),
    "Sidecar": ("egress",),
    "IstioEgressListener": ("hosts",),
    "IstioIngressListener": ("port",),
    "EnvoyFilter": ("configPatches",),
    "EnvoyFilterEnvoyConfigObjectPatch": (),
    "Condition": ("key", "values"),
    "AuthorizationPolicy": ("rules",),
    "RequestAuthentication": ("jwtRules",),
    "JwtRule": ("issuer",),
    "JwtHeader": ("name",),
    "HttpDirectResponse": ("status",),
    "HttpRetry": ("attempts",),
    "MeshConfig": ("extensionProviders", "defaultConfig"),
    "MeshConfigExtensionProvider": ("name",),
    "NetworkIstioNetworkGateway": ("port",),
    "Policy": ("targets", "peers"),
    "TargetSelector": ("name",),
    "Jwt": ("issuer",),
    "ServiceRole": ("rules",),
    "AccessRule": ("services",),
    "AccessRuleConstraint": ("key", "values"),
    "ServiceRoleBinding": ("subjects", "roleRef"),
    "RoleRef": ("name",),
    "RbacConfig": ("mode",),
    "LocalRateLimit": ("http",),
    "HttpRateLimits": ("limits",),
    "RequestLimit": ("rate",),
    "ConnectionLimit": ("rate",),
    "Rate": ("count",),
    "GlobalRateLimit": ("service", "domain", "descriptors"),
    "RateLimitServer": ("host", "port"),
    "RateLimitDescriptor": ("entries",),
    "HealthCheck": ("host",),
    "HttpCheck": ("path",),
}
"""Fields that are always written."""

_ONE_FOR_ALL = ("MeshPolicy", "RbacConfig", "ClusterRbacConfig")
"""Kinds of which there is one object, with the name that it must have."""

_SELECTING = ("workloadSelector", "selector", "targetRef", "targetRefs")


@attrs.frozen
class Candidate:
    """An object that validation accepts: what was written, and what was read."""

    kind: str
    document: Json
    item: Item = attrs.field(eq=False, repr=False)


def accepted(kind: str, document: Json) -> Candidate:
    """Read an object as the file source does. Raises ConfigError."""
    if kind == MESH:
        return Candidate(kind, document, MeshConfigValue(decode_mesh(document, origin=_ORIGIN)))
    if kind == NETWORKS:
        return Candidate(kind, document, MeshNetworksValue(decode_networks(document, origin=_ORIGIN)))
    return Candidate(kind, document, decode(document, origin=_ORIGIN))


def random_object(pick: random.Random, kind: str, name: str) -> Candidate | None:
    """An object of a kind that validation accepts; None where fixing does not succeed."""
    values = Values(pick, pick.choice((0.0, 0.02, 0.05, 0.15)))
    writer = Writer(values)
    message = {MESH: MeshConfig, NETWORKS: MeshNetworks}.get(kind) or KINDS[kind].message
    document = writer.message(message, 0)
    if kind not in (MESH, NETWORKS):
        namespace = pick.choice(("shop", "shop", "shop", "other", "istio-system"))
        day = pick.randint(1, 9)
        created = f"2024-03-0{day}T00:00:00Z"
        head = {"apiVersion": KINDS[kind].api_versions[-1], "kind": kind}
        name = "default" if kind in _ONE_FOR_ALL else name
        metadata = {"name": name, "namespace": namespace, "creationTimestamp": created}
        document = {**head, "metadata": metadata, "spec": document}
    for _ in range(_TRIES):
        try:
            return accepted(kind, document)
        except ConfigError as error:
            errors = [problem for problem in error.problems if problem.severity is Severity.ERROR]
        writer.values = Values(pick, 0.0)
        root = document if kind in (MESH, NETWORKS) else document.get("spec", {})
        for problem in errors[:5]:
            _mend(writer, root, message, problem, is_bare=kind in (MESH, NETWORKS))
    return None


class Writer:
    """Writes messages as JSON, from their descriptors."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def message(self, message: type[betterproto2.Message], depth: int) -> Json:
        name = message.__name__
        fields = [field for field in descriptor_of(message).fields if field.json_name not in _SELECTING]
        chosen = {name: self.values.pick.choice(members) for name, members in _groups(fields).items()}
        plain = [field for field in fields if field.group is None]
        usual = _USUAL.get(name, ())
        share = min(1.0, self.values.pick.choice((1.0, 2.0, 5.0)) / max(len(plain), 1))
        written: Json = {}
        for field in fields:
            if field.group is not None:
                wanted = chosen[field.group] is field and self.values.chance(0.8)
            else:
                wanted = field.json_name in usual or self.values.chance(share)
            if wanted and depth < _DEPTH:
                self.put(written, name, field, depth)
        if name == "VirtualService":
            self._routes(written, depth)
        if name == "HttpRoute" and not {"redirect", "directResponse", "delegate"} & written.keys():
            self.put(written, name, descriptor_of(message).by_name["route"], depth)
        if name == "Gateway":
            written["selector"] = {"istio": "edge"}
        if name == "EnvoyFilterEnvoyConfigObjectPatch":
            return random_patch(self.values)
        for selector in _SELECTING:
            found = descriptor_of(message).by_name.get(selector)
            if found is not None and found.message is not None and self.values.chance(0.1):
                self.put(written, name, found, depth)
        return written

    def _routes(self, written: Json, depth: int) -> None:
        for name in ("http", "tls", "tcp"):
            written.pop(name, None)
        name = self.values.pick.choice(("http", "http", "http", "http", "tls", "tcp"))
        self.put(written, "VirtualService", descriptor_of(VirtualService).by_name[name], depth)

    def put(self, written: Json, message: str, field: FieldDescriptor, depth: int) -> None:
        """Write a field, unless there is nothing to write."""
        if field.value is not None and field.key is not None:
            written[field.json_name] = self._map(field, message, depth)
            return
        if not self.values.known(message, field.json_name) and _is_unset(message, field.json_name):
            return
        if not field.repeated:
            written[field.json_name] = self.one(field, message, depth)
            return
        count = self.values.pick.choice((1, 1, 1, 2, 2, 3))
        items = [self.one(field, message, depth) for _ in range(count)]
        if self.values.chance(self.values.nasty):
            items.append(copy.deepcopy(items[0]))
        written[field.json_name] = items

    def _map(self, field: FieldDescriptor, message: str, depth: int) -> Json:
        assert field.key is not None and field.value is not None
        keys, common = MAPS.get(field.json_name, (("a", "b", "x.y"), ()))
        written = {}
        for _ in range(self.values.pick.choice((1, 1, 2))):
            key = self.values.pick.choice(keys)
            is_text = field.key.proto_type == "string"
            value = self.one(field.value, message, depth, named=field.json_name)
            if common and not self.values.chance(self.values.nasty):
                value = self.values.pick.choice(common)
            written[self.values.nasty_key(key) if is_text else key] = value
        return written

    def one(self, field: FieldDescriptor, message: str, depth: int, named: str = "") -> Any:
        """One value of a field."""
        name = named or field.json_name
        if field.enum is not None:
            members = [member.proto_name or member.name for member in field.enum]
            return self.values.pick.choice(members)
        if field.message is not None:
            return self.message(field.message, depth + 1)
        if field.wellknown is timedelta:
            return self.values.scalar("duration", message, name)
        if field.wellknown is not None:
            return {key: self.values.scalar("string", message, "text") for key in ("a", "b")}
        return self.values.scalar(field.proto_type, message, name)


def _is_unset(message: str, field: str) -> bool:
    return f"{message}.{field}" not in FIELDS and field in FIELDS


def _groups(fields: Sequence[FieldDescriptor]) -> dict[str, list[FieldDescriptor]]:
    groups: dict[str, list[FieldDescriptor]] = {}
    for field in fields:
        if field.group is not None:
            groups.setdefault(field.group, []).append(field)
    return groups


_STEP = re.compile(r"\[(\d+)\]|\[([^\]]*)\]|([^.\[\]]+)")


def _steps(path: str) -> Iterator[str | int]:
    for number, key, name in _STEP.findall(path):
        yield int(number) if number else name or key


def _mend(writer: Writer, root: Json, message: type[betterproto2.Message], problem: Problem, *, is_bare: bool) -> None:
    """Write the field that a problem names again, or leave it or what it is part of out."""
    steps = list(_steps(problem.path))
    if not is_bare:
        steps = steps[1:] if steps[:1] == ["spec"] else []
    trail = _trail(root, message, steps)
    if not trail:
        root.clear()
        root.update(writer.message(message, 0))
        return
    holder, step, field, owner = trail[-1]
    values = writer.values
    if field is not None and values.chance(0.5):
        if isinstance(holder, list) and isinstance(step, int) and _has(holder, step):
            holder[step] = writer.one(field, owner, _DEPTH - 4)
        elif isinstance(holder, dict):
            writer.put(holder, owner, field, _DEPTH - 4)
        return
    while len(trail) > 1 and (values.chance(0.3) or not _has(holder, step)):
        trail.pop()
        holder, step, field, owner = trail[-1]
    if isinstance(holder, list) and isinstance(step, int):
        del holder[step : step + 1]
    elif isinstance(holder, dict):
        holder.pop(step, None)


def _has(holder: Any, step: str | int) -> bool:
    return step < len(holder) if isinstance(holder, list) and isinstance(step, int) else step in holder


_Place = tuple[Any, "str | int", "FieldDescriptor | None", str]


def _trail(root: Json, message: type[betterproto2.Message], steps: Sequence[str | int]) -> list[_Place]:
    """Each place on the way to a path, as far as it exists: container, step, field and name of the message."""
    trail: list[_Place] = []
    node: Any = root
    current: type[betterproto2.Message] | None = message
    field: FieldDescriptor | None = None
    for step in steps:
        owner = current.__name__ if current is not None else ""
        if isinstance(node, dict) and current is not None and not (field is not None and field.value):
            field = descriptor_of(current).by_name.get(str(step))
            step = field.json_name if field is not None else str(step)
            trail.append((node, step, field, owner))
            current = field.message if field is not None and field.message is not None else current
            if field is not None and field.value is not None:
                current = field.value.message or current
        elif isinstance(node, dict):
            trail.append((node, str(step), None, owner))
            field = None
        elif isinstance(node, list) and isinstance(step, int):
            trail.append((node, step, field if field is not None and field.repeated else None, owner))
        else:
            break
        if not _has(node, trail[-1][1]):
            break
        node = node[trail[-1][1]]
    return trail
