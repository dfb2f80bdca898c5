"""One instance of a service, out of a health entry of Consul (``/v1/health/service/:service``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import attrs

from mesh_pilot.base.reading import as_integer, as_list, as_object, as_objects, as_string
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

SERVED_KINDS = ("", "typical")
"""Kinds of services that are services; the others are proxies and gateways of Consul's own mesh."""


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
    facts: Mapping[str, str]
    """Its metadata, and tags ``key=value`` or ``key|value`` whose key is not in the metadata."""
    node_meta: Mapping[str, str]
    tagged: Mapping[str, tuple[str, int]]
    """Further addresses with their ports (0: its own) by tag: ``lan``, ``wan``, ``virtual``."""
    node_tagged: Mapping[str, str]
    weight: int
    """The weight in its state; 0: it gets no traffic."""
    state: State
    proxied: str = ""
    """Of a proxy of Consul's own mesh: the service that it is for."""
    is_native: bool = False
    """True if its application speaks Connect's mutual TLS itself."""
    trouble: str = ""
    """The check that decides its state, with what it said last; empty while all pass."""
    modified_at: int = attrs.field(default=0, eq=False)
    """The index of its last registration that differed; 0: Consul does not say."""

    @property
    def is_served(self) -> bool:
        return self.kind in SERVED_KINDS

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
    """The instance that a health entry describes; a field of the wrong type counts as absent."""
    whole = as_object(entry)
    node, service = as_object(whole, "Node"), as_object(whole, "Service")
    tagged = {tag: as_object(where) for tag, where in as_object(service, "TaggedAddresses").items()}
    state = _state(whole.get("Checks"))
    facts = {**_tags(service.get("Tags")), **_texts(service.get("Meta"))}
    port, named = _ports(service)
    return ConsulInstance(
        node=as_string(node, "Node"),
        id=as_string(service, "ID"),
        kind=as_string(service, "Kind"),
        datacenter=as_string(node, "Datacenter"),
        address=as_string(service, "Address"),
        node_address=as_string(node, "Address"),
        port=port,
        facts={**_port_facts(named, facts), **facts},
        node_meta=_texts(node.get("Meta")),
        tagged={t: (as_string(w, "Address"), _number(w.get("Port"))) for t, w in tagged.items() if w.get("Address")},
        node_tagged=_texts(node.get("TaggedAddresses")),
        weight=_weight(service.get("Weights"), state),
        state=state,
        proxied=as_string(service, "Proxy", "DestinationServiceName"),
        is_native=as_object(service, "Connect").get("Native") is True,
        trouble=_trouble(whole.get("Checks"), state),
        modified_at=as_integer(service, "ModifyIndex"),
    )


def said_network(instance: ConsulInstance) -> str:
    """The network that an instance says it is of; empty: it does not say."""
    return instance.facts.get("network") or instance.facts.get(NETWORK_LABEL, "")


def said_cluster(instance: ConsulInstance) -> str:
    """The cluster of an instance: as it says, else its datacenter."""
    return instance.facts.get("cluster_id") or instance.facts.get(CLUSTER_LABEL) or instance.datacenter


def port_number(text: str) -> int:
    """A port number in the text of a fact; 0: it is none."""
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


def _ports(service: Mapping[str, object]) -> tuple[int, Mapping[str, int]]:
    """The port of an instance, and those that have a name, the default one first.

    Consul 2.0 has ``Ports``, a list of ``{Name, Port, Default}``, in place of ``Port``.
    """
    ports = sorted(as_objects(service, "Ports"), key=lambda each: each.get("Default") is not True)
    named = {as_string(each, "Name"): number for each in ports if (number := _number(each.get("Port")))}
    named.pop("", None)
    return _number(service.get("Port")) or next(iter(named.values()), 0), named


def _port_facts(named: Mapping[str, int], said: Mapping[str, str]) -> dict[str, str]:
    """The same as metadata: the default port is that of the registration, the others are further ones."""
    facts = {f"port_{name}": str(number) for name, number in list(named.items())[1:]}
    for name in list(named)[:1]:
        facts["port_name"] = name
        if "protocol" not in said and Protocol.parse(name.partition("-")[0]) is not Protocol.AUTO:
            facts[f"protocol_{name}"] = name.partition("-")[0]
    return facts


def _state(checks: object) -> State:
    return max(map(_state_of, map(as_object, as_list(checks))), default=State.PASSING)


def _state_of(check: Mapping[str, object]) -> State:
    if as_string(check, "CheckID").startswith(_MAINTENANCE):
        return State.MAINTENANCE
    return _STATES.get(as_string(check, "Status"), State.CRITICAL)


def _trouble(checks: object, state: State) -> str:
    """The first check in this state, with what it said, on one line."""
    if state is State.PASSING:
        return ""
    check = next(check for check in map(as_object, as_list(checks)) if _state_of(check) is state)
    name = as_string(check, "Name") or as_string(check, "CheckID")
    said = " ".join((as_string(check, "Output") or as_string(check, "Notes")).split())[:_MAX_OUTPUT]
    return f"{name}: {said}" if said else name


def _weight(weights: object, state: State) -> int:
    """The weight in a state; 0: no traffic. Anything but a number counts as 1, as where nothing is said."""
    of_state = as_object(weights).get("Warning" if state is State.WARNING else "Passing")
    return min(of_state, _MAX_WEIGHT) if isinstance(of_state, int) and of_state >= 0 else 1


def _texts(value: object) -> dict[str, str]:
    return {name: text for name, text in sorted(as_object(value).items()) if isinstance(text, str) and text}


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value <= 65535 else 0
