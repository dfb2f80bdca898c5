"""The ports of a Consul service: what its instances say together about them.

A port has its name from Consul (``Ports``) or from metadata (``port_<name>``), and instances of both kinds may be
mixed. Which one is the default may differ between instances: a port is the same one by its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from mesh_pilot.consul.client.settings import ConsulSettings
from mesh_pilot.consul.source.instance import PORT_CHECK, ConsulInstance, port_number
from mesh_pilot.model.config import Problem
from mesh_pilot.model.service import Protocol

_BY_DEFAULT = "the service's default"
"""The sayer of a protocol that nothing else says."""


@attrs.frozen
class ServicePort:
    """A port of the service: what it is called, and where each instance has it."""

    name: str
    number: int
    protocol: Protocol
    said_by: str
    """See ``Port.said_by``."""
    key: str
    """The name in Consul, as in metadata (``port_<key>``)."""
    is_main: bool
    """True for the port of the registration."""

    def at(self, instance: ConsulInstance, settings: ConsulSettings) -> int:
        """The port at which an instance listens; 0: it lacks this port."""
        return _listening_at(instance, self.key, settings, is_main=self.is_main)


def service_ports(
    members: Sequence[ConsulInstance], settings: ConsulSettings, problems: list[Problem]
) -> tuple[ServicePort, ...]:
    """The ports of a service: that of its registration first, then those of metadata by name.

    Where instances differ on the port that clients call, each of them is one: callers move at their own pace, too.
    """
    found: dict[str, ServicePort] = {}
    main = _said_name(members, problems)
    if listening := _listening(members, main, settings, is_main=True):
        protocol, said_by = _protocol(members, [f"protocol_{main}"] if main else [], settings, problems)
        if said_by == _BY_DEFAULT and any(main in i.ports for i, _ in listening):
            protocol, said_by = _named_protocol(main, settings)
        name = main or (protocol.lower() if protocol is not Protocol.AUTO else "main")
        numbers = _client_ports(listening, "service_port", settings.service_port, problems)
        found |= {port.name: port for port in _named(name, numbers, protocol, said_by, main or name, is_main=True)}
    names = {k.removeprefix("port_") for i in members for k in i.facts if k.startswith("port_") and k != "port_name"}
    names |= {name for i in members for name in i.ports if name != main}
    for name in sorted(names - found.keys()):
        protocol, said_by = _protocol(members, [f"protocol_{name}"], settings, problems, name)
        _report_bad_numbers(members, f"port_{name}", problems)
        if listening := _listening(members, name, settings, is_main=False):
            numbers = _client_ports(listening, f"service_port_{name}", 0, problems)
            found |= {port.name: port for port in _named(name, numbers, protocol, said_by, name, is_main=False)}
    # Envoy has one listener for a number: the port of the registration, which comes first, keeps it.
    by_number: dict[int, ServicePort] = {}
    for port in found.values():
        taken = by_number.setdefault(port.number, port)
        if taken is not port:
            reason = f"is {port.number} as that of {taken.name!r}; it is left out: set service_port_{port.key}"
            problems.append(Problem(f"Meta.port_{port.key}", reason))
    return tuple(by_number.values())


def _named(
    name: str, numbers: Sequence[int], protocol: Protocol, said_by: str, key: str, *, is_main: bool
) -> Iterable[ServicePort]:
    for rank, number in enumerate(numbers):
        yield ServicePort(f"{name}-{number}" if rank else name, number, protocol, said_by, key, is_main)


def _said_name(members: Sequence[ConsulInstance], problems: list[Problem]) -> str:
    """The name of the port of the registration: in Consul, else in metadata; empty: none says it."""
    votes = Counter(name for i in members if (name := i.default_port or i.facts.get("port_name", "")))
    return _winner(votes, "Ports" if any(i.ports for i in members) else "Meta.port_name", problems)


def _listening(
    members: Sequence[ConsulInstance], name: str, settings: ConsulSettings, *, is_main: bool
) -> list[tuple[ConsulInstance, int]]:
    """The instances that have a port, each with the number at which it listens."""
    return [(i, at) for i in members if (at := _listening_at(i, name, settings, is_main=is_main))]


def _listening_at(instance: ConsulInstance, name: str, settings: ConsulSettings, *, is_main: bool) -> int:
    """The number at which an instance listens for a port, by its name in Consul; 0: it lacks this port."""
    if name == instance.default_port or (is_main and not instance.ports):
        return instance.reached_at(settings.address_tag)[1]
    return instance.ports.get(name, 0) or port_number(instance.facts.get(f"port_{name}", ""))


def with_ports(members: Sequence[ConsulInstance], ports: Sequence[ServicePort]) -> list[ConsulInstance]:
    """The instances, where checks that name a port which they lack are of the whole instance."""
    names = frozenset(port.key for port in ports)
    return [each.with_ports(names) for each in members]


def report_stray_checks(
    members: Sequence[ConsulInstance], ports: Sequence[ServicePort], problems: list[Problem]
) -> None:
    names = frozenset(port.key for port in ports)
    strays = {port: i.id for i in reversed(members) for port in i.port_conditions if port not in names}
    for port, instance in sorted(strays.items()):
        reason = f"{PORT_CHECK}{port} of instance {instance!r} names no port of the service; it is for all its ports"
        problems.append(Problem("Checks", reason))


def report_odd_ports(members: Sequence[ConsulInstance], problems: list[Problem]) -> None:
    """Report the contradictions in the ports of instances: each once, however many have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in members:
        again = [
            (f"Meta.port_{name}", f"{said} is not that of Ports; {number} is used")
            for name, number in each.ports.items()
            if port_number(said := each.facts.get(f"port_{name}", "")) not in (0, number)
        ]
        for odd in (*each.odd_ports, *again):
            found.setdefault(odd, []).append(each.id)
    for (path, reason), ids in found.items():
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        problems.append(Problem(path, f"instance {ids[0]!r}{more}: {reason}"))


def _client_ports(
    listening: Sequence[tuple[ConsulInstance, int]], key: str, default: int, problems: list[Problem]
) -> Sequence[int]:
    """The numbers by which clients call a port: those that instances say, in order.

    `listening`: the instances that have the port, and where; `default`: the number where one says none, 0 for the
    lowest of those at which these listen.
    """
    _report_bad_numbers([each for each, _ in listening], key, problems)
    said = {port_number(each.facts.get(key, "")) for each, _ in listening} - {0}
    unsaid = {at for each, at in listening if not port_number(each.facts.get(key, ""))}
    if unsaid and not default and len(unsaid) > 1:
        reason = f"instances listen on {len(unsaid)} ports, clients use the lowest, {min(unsaid)}: say {key}"
        problems.append(Problem(f"Meta.{key}", reason))
    numbers = sorted(said | ({default or min(unsaid)} if unsaid else set()))
    if said and len(numbers) > 1:
        listed = ", ".join(map(str, numbers))
        silent = f" ({default or min(unsaid)} for those that do not say)" if unsaid else ""
        problems.append(Problem(f"Meta.{key}", f"instances differ: {listed}{silent}; clients can use each of them"))
    return numbers


def _report_bad_numbers(members: Iterable[ConsulInstance], key: str, problems: list[Problem]) -> None:
    bad = sorted({i.facts[key] for i in members if key in i.facts and not port_number(i.facts[key])})
    if bad:
        problems.append(Problem(f"Meta.{key}", f"{', '.join(map(repr, bad))} is not a port number; it is ignored"))


def _protocol(
    members: Sequence[ConsulInstance],
    keys: Sequence[str],
    settings: ConsulSettings,
    problems: list[Problem],
    port_name: str = "",
) -> tuple[Protocol, str]:
    """The protocol of a port: of one of these keys, else of a further port's name, else the service's; and by what."""
    for key in (*keys, *(() if port_name else ("protocol",))):
        said = said_by_most(members, key, problems)
        protocol = Protocol.parse(said)
        if protocol is not Protocol.AUTO:
            return protocol, f"metadata or tag {key}"
        if said:
            used = settings.default_protocol.value
            problems.append(Problem(f"Meta.{key}", f"{said!r} is not a known protocol; {used} is used"))
    return _named_protocol(port_name, settings)


def _named_protocol(port_name: str, settings: ConsulSettings) -> tuple[Protocol, str]:
    """The protocol that a port's name says, else the service's default; and by what."""
    named = Protocol.parse(port_name.partition("-")[0])
    return (settings.default_protocol, _BY_DEFAULT) if named is Protocol.AUTO else (named, "the port name")


def said_by_most(members: Sequence[ConsulInstance], key: str, problems: list[Problem]) -> str:
    """The value of a key that concerns the whole service; if instances differ, that of most of them."""
    votes = Counter(i.facts[key] for i in members if key in i.facts)
    return _winner(votes, f"Meta.{key}", problems)


def _winner(votes: Counter[str], path: str, problems: list[Problem]) -> str:
    if not votes:
        return ""
    winner = min(votes, key=lambda value: (-votes[value], value))
    if len(votes) > 1:
        problems.append(Problem(path, f"instances say {', '.join(sorted(votes))}; {winner} is used"))
    return winner
