"""One instance of a service, out of a health entry of Consul (``/v1/health/service/:service``)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from enum import IntEnum
from sys import intern

import attrs

from mesh_pilot.base.reading import as_integer, as_list, as_object, as_objects, as_string
from mesh_pilot.consul.client.settings import DEFAULT_NAMESPACE
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.service import CLUSTER_LABEL, NETWORK_LABEL, Protocol


class State(IntEnum):
    """The state of an instance: that of its worst check."""

    PASSING = 0
    WARNING = 1
    CRITICAL = 2
    MAINTENANCE = 3


_STATES = {"passing": State.PASSING, "warning": State.WARNING, "critical": State.CRITICAL}
_MAINTENANCE = ("_node_maintenance", "_service_maintenance:")

_VERSIONS = ("_ipv4", "_ipv6")
"""The ends of tags whose addresses are of one IP version."""

_PORT_DIGITS = 5
_MAX_WEIGHT = 65535
_MAX_OUTPUT = 200
"""Characters of a check's output that are kept."""

PORT_CHECK = "port:"
"""The beginning of the name of a check that is of one port alone: ``port:grpc``. See decision 042."""

_NO_TEXTS: Mapping[str, str] = {}
"""One for all: most instances have no metadata of their node."""

SERVED_KINDS = ("", "typical")
"""Kinds of services that are services; the others are proxies and gateways of Consul's own mesh."""


@attrs.frozen
class InstanceCondition:
    """The state of an instance, or of one of its ports."""

    state: State = State.PASSING
    weight: int = 1
    """The weight in its state; 0: it gets no traffic."""
    trouble: str = ""
    """The check that decides its state, with what it said last; empty while all pass."""

    def or_worse(self, other: InstanceCondition) -> InstanceCondition:
        """The worse of two; this one if they are in the same state."""
        return other if other.state > self.state else self


_HEALTHY = InstanceCondition()
_NO_PORTS: Mapping[str, int] = {}
_NO_CONDITIONS: Mapping[str, InstanceCondition] = {}
"""The values of most instances: one of each in memory."""


@attrs.frozen
class ConsulInstance:
    """An instance as Consul knows it."""

    node: str
    id: str
    kind: str
    datacenter: str
    address: str
    """The service's own address; empty where it has that of its node."""
    node_address: str
    port: int
    """That of its registration; of those with a name, the default one."""
    facts: Mapping[str, str]
    """The metadata, and tags ``key=value`` or ``key|value`` whose key is not in the metadata."""
    node_meta: Mapping[str, str]
    tagged: Mapping[str, tuple[str, int]]
    """Further addresses with their ports (0: its own) by tag: ``lan``, ``wan``, ``virtual``."""
    node_tagged: Mapping[str, str]
    condition: InstanceCondition
    """That of all its ports; without the checks of one port alone."""
    ports: Mapping[str, int] = _NO_PORTS
    """The ports that have a name in Consul (``Ports``), the default one first."""
    port_conditions: Mapping[str, InstanceCondition] = _NO_CONDITIONS
    """The conditions of ports with checks of one port alone, by name."""
    namespace: str = ""
    partition: str = ""
    """The namespace and partition of Consul Enterprise; empty for the default ones."""
    region: str = ""
    zone: str = ""
    """The ``Locality`` of the instance, else of its node."""
    odd_ports: tuple[tuple[str, str], ...] = ()
    """The contradictions in its ports: field and reason."""
    proxied: str = ""
    """Value of a proxy of Consul's own mesh: the service that it is for."""
    proxied_id: str = ""
    """Likewise: the id of the instance; empty if it has no instance."""
    is_native: bool = False
    """True if its application speaks Connect's mutual TLS itself."""
    modified_at: int = attrs.field(default=0, eq=False)
    """The index of its last registration that differed; 0: Consul does not say."""

    @property
    def is_served(self) -> bool:
        return self.kind in SERVED_KINDS

    @property
    def default_port(self) -> str:
        """The name in Consul of the port of its registration; empty if it has none."""
        return next(iter(self.ports), "")

    def condition_of(self, port: str) -> InstanceCondition:
        """The condition of a port, by name."""
        return self.condition.or_worse(self.port_conditions.get(port, self.condition))

    def with_ports(self, names: Container[str]) -> ConsulInstance:
        """The instance in a service whose ports have these names: checks of other ports are of the whole instance."""
        strays = [port for port in self.port_conditions if port not in names]
        whole = self.condition
        for port in strays:
            whole = whole.or_worse(self.port_conditions[port])
        conditions = {name: each for name, each in self.port_conditions.items() if name not in strays}
        return attrs.evolve(self, condition=whole, port_conditions=conditions) if strays else self

    def reached_at(self, tag: str) -> tuple[str, int]:
        """Address and port that clients use, where they prefer the address of a tag."""
        if tag and tag in self.tagged:
            address, port = self.tagged[tag]
            return address, port or self.port
        if tag and not self.address and tag in self.node_tagged:
            return self.node_tagged[tag], self.port
        return self.address or self.node_address, self.port

    def other_address(self, tag: str) -> tuple[str, str, int]:
        """The tag of its address of the other IP version, that address, and its port; empty without one.

        With a tag that is of one IP version, clients want that version alone.
        """
        address, port = self.reached_at(tag)
        if not is_ip(address) or tag.endswith(_VERSIONS):
            return "", "", 0
        other = (tag or "lan") + _VERSIONS[":" not in address]
        found, found_port = self.tagged.get(other, ("", 0))
        if not found and not self.address:
            found = self.node_tagged.get(other, "")
        return other, found, found_port or port


def is_entry(entry: object) -> bool:
    """True if this is a health entry at all: it has a node and a service."""
    return isinstance(entry, Mapping) and all(isinstance(entry.get(part), Mapping) for part in ("Node", "Service"))


def read_instance(entry: object) -> ConsulInstance:
    """The instance that a health entry describes; a field of the wrong type counts as absent.

    What all instances on a node say of it is one string for all of them.
    """
    whole = as_object(entry)
    node, service = as_object(whole, "Node"), as_object(whole, "Service")
    tagged = {tag: as_object(where) for tag, where in as_object(service, "TaggedAddresses").items()}
    facts = {**_tags(service.get("Tags")), **_texts(service.get("Meta"))}
    ports, odd_ports = _named_ports(service)
    checks = [as_object(check) for check in as_list(whole.get("Checks"))]
    of_ports = {name for check in checks if (name := _port_of(check))}
    # One condition a field: each may be absent or of another type, and none decides about another.
    weights = service.get("Weights")
    return ConsulInstance(
        node=intern(as_string(node, "Node")),
        id=as_string(service, "ID"),
        kind=as_string(service, "Kind"),
        datacenter=intern(as_string(node, "Datacenter")),
        address=as_string(service, "Address"),
        node_address=intern(as_string(node, "Address")),
        port=next(iter(ports.values()), 0) or _number(service.get("Port")),
        facts=facts,
        node_meta=_texts(node.get("Meta")),
        tagged={t: (as_string(w, "Address"), _number(w.get("Port"))) for t, w in tagged.items() if w.get("Address")},
        node_tagged=_texts(node.get("TaggedAddresses")),
        condition=_condition((check for check in checks if not _port_of(check)), weights),
        ports=ports or _NO_PORTS,
        port_conditions={
            name: _condition((check for check in checks if _port_of(check) == name), weights)
            for name in sorted(of_ports)
        }
        or _NO_CONDITIONS,
        namespace=_tenant(as_string(service, "Namespace")),
        partition=_tenant(as_string(service, "Partition") or as_string(node, "Partition")),
        region=intern(as_string(service, "Locality", "Region") or as_string(node, "Locality", "Region")),
        zone=intern(as_string(service, "Locality", "Zone") or as_string(node, "Locality", "Zone")),
        odd_ports=odd_ports,
        proxied=as_string(service, "Proxy", "DestinationServiceName"),
        proxied_id=as_string(service, "Proxy", "DestinationServiceID"),
        is_native=as_object(service, "Connect").get("Native") is True,
        modified_at=as_integer(service, "ModifyIndex"),
    )


def said_network(instance: ConsulInstance) -> str:
    """The network that an instance says it is of; empty: it does not say."""
    return instance.facts.get("network") or instance.facts.get(NETWORK_LABEL, "")


def said_cluster(instance: ConsulInstance) -> str:
    """The cluster of an instance: as it says, else its datacenter."""
    return instance.facts.get("cluster_id") or instance.facts.get(CLUSTER_LABEL) or instance.datacenter


def port_number(text: str) -> int:
    """The port number in the text of a fact; 0 for anything else."""
    return int(text) if text.isdecimal() and len(text) <= _PORT_DIGITS and 0 < int(text) <= 65535 else 0


def _tags(tags: object) -> dict[str, str]:
    """The facts in tags; these are sorted first, so that their order never matters. A tag ``http`` is the protocol."""
    found: dict[str, str] = {}
    for tag in sorted(as_string(tag) for tag in as_list(tags)):
        cut = min((at for at in (tag.find("="), tag.find("|")) if at > 0), default=0)
        if cut:
            found.setdefault(tag[:cut].strip(), tag[cut + 1 :].strip())
        elif Protocol.parse(tag) is not Protocol.AUTO:
            found.setdefault("protocol", tag)
    return found


def _named_ports(service: Mapping[str, object]) -> tuple[dict[str, int], tuple[tuple[str, str], ...]]:
    """The ports that have a name, the default one first, and what contradicts itself in them.

    Consul 1.22 and 2.0 have ``Ports``, a list of ``{Name, Port, Default}``, in place of ``Port``.
    """
    listed = as_objects(service, "Ports")
    found: dict[str, int] = {}
    defaults: list[str] = []
    odd: list[tuple[str, str]] = []
    for index, each in enumerate(listed):
        name, number = as_string(each, "Name"), _number(each.get("Port"))
        if not name or not number:
            reason = f"port {number} has no name" if number else f"{each.get('Port')!r} is not a port number"
            odd.append((f"Ports[{index}]", f"{reason}; it is left out"))
        elif name in found:
            odd.append((f"Ports[{index}]", f"is a second port {name!r}; the first, {found[name]}, is used"))
        else:
            found[name] = number
            defaults += [name] if each.get("Default") is True else []
    if len(defaults) > 1:
        odd.append(("Ports", f"{' and '.join(map(repr, defaults))} are both the default; {defaults[0]!r} is used"))
    default = (defaults or [*found, ""])[0]
    port = service.get("Port")
    if found and port not in (None, 0, found[default]):
        odd.append(("Port", f"{port!r} is not that of the default port, {default!r}; {found[default]} is used"))
    return dict(sorted(found.items(), key=lambda item: item[0] != default)), tuple(odd)


def _port_of(check: Mapping[str, object]) -> str:
    """The name of the port that a check is of; empty: it is of the whole instance."""
    name = as_string(check, "Name")
    return name.removeprefix(PORT_CHECK).strip() if name.startswith(PORT_CHECK) else ""


def _condition(checks: Iterable[Mapping[str, object]], weights: object) -> InstanceCondition:
    found = list(checks)
    state = max(map(_state_of, found), default=State.PASSING)
    made = InstanceCondition(state, _weight(weights, state), _trouble(found, state))
    return _HEALTHY if made == _HEALTHY else made


def _state_of(check: Mapping[str, object]) -> State:
    if as_string(check, "CheckID").startswith(_MAINTENANCE):
        return State.MAINTENANCE
    return _STATES.get(as_string(check, "Status"), State.CRITICAL)


def _trouble(checks: Sequence[Mapping[str, object]], state: State) -> str:
    """The first check in this state, with what it said, on one line."""
    if state is State.PASSING:
        return ""
    check = next(check for check in checks if _state_of(check) is state)
    name = as_string(check, "Name") or as_string(check, "CheckID")
    said = " ".join((as_string(check, "Output") or as_string(check, "Notes")).split())[:_MAX_OUTPUT]
    return f"{name}: {said}" if said else name


def _weight(weights: object, state: State) -> int:
    """The weight in a state; 0: no traffic. Anything but a number counts as 1, as where nothing is said."""
    of_state = as_object(weights).get("Warning" if state is State.WARNING else "Passing")
    return min(of_state, _MAX_WEIGHT) if isinstance(of_state, int) and of_state >= 0 else 1


def _texts(value: object) -> Mapping[str, str]:
    found = {name: text for name, text in sorted(as_object(value).items()) if isinstance(text, str) and text}
    return found or _NO_TEXTS


def _tenant(name: str) -> str:
    return "" if name == DEFAULT_NAMESPACE else intern(name)


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value <= 65535 else 0
