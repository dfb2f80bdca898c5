"""Hosts that are known, who sees them, and which one was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs

from mesh_pilot.base.reading import as_objects
from mesh_pilot.explain.analysis.input import AnalysisInput
from mesh_pilot.model.config import Config
from mesh_pilot.world.names import PUBLIC, export_namespaces

EXPORT_ANNOTATION = "networking.istio.io/exportTo"
_REGISTRY_SUFFIX = ".consul"


@attrs.frozen
class HostPort:
    number: int
    name: str
    protocol: str


@attrs.frozen(eq=False)
class KnownHost:
    """A host that a registry, a ServiceEntry or a Service of Kubernetes declares."""

    host: str
    namespace: str
    ports: tuple[HostPort, ...]
    visible: frozenset[str]
    """``*`` or namespaces."""
    selector: Mapping[str, str]
    """``workloadSelector`` of its ServiceEntry."""
    config: Config | None


class Hosts:
    """All hosts of a picture."""

    def __init__(self, picture: AnalysisInput) -> None:
        self._picture = picture
        self._at: dict[tuple[str, str], KnownHost] = {}
        """Hosts by who may see them (``*`` or a namespace) and name."""
        self._wildcards: dict[str, list[tuple[str, KnownHost]]] = {}
        """Wildcard hosts by their name without the star: who may see each, and the host."""
        self._named: dict[str, list[KnownHost]] = {}
        for known in _known_hosts(picture):
            self._named.setdefault(known.host, []).append(known)
            for scope in known.visible:
                if known.host.startswith("*"):
                    self._wildcards.setdefault(known.host[1:], []).append((scope, known))
                self._at.setdefault((scope, known.host), known)

    def find(self, host: str, namespace: str, export_to: Sequence[str] = ()) -> KnownHost | None:
        """The meaning of a host in an object of a namespace that is exported to these; None if it is unknown there."""
        full = self._picture.full_host(host, namespace)
        if found := self._at.get((PUBLIC, full)):
            return found
        for scope in export_to or (namespace,):
            if found := self._at.get((namespace if scope == "." else scope, full)):
                return found
        bare = full.removeprefix("*")
        for ending in (bare[start:] for start in range(len(bare) + 1)):
            for scope, known in self._wildcards.get(ending, ()):
                if scope in (PUBLIC, namespace):
                    return known
        return None

    def any_within(self, wildcard: str) -> bool:
        """True if a host is known that a wildcard covers."""
        return wildcard[1:].lstrip(".") in self._endings

    @cached_property
    def _endings(self) -> frozenset[str]:
        """The domains that hosts are in, and the hosts."""
        parts = (host.split(".") for host in self._named)
        return frozenset(".".join(labels[start:]) for labels in parts for start in range(len(labels)))

    def named(self, host: str) -> Sequence[KnownHost]:
        """Everything with exactly this full name."""
        return self._named.get(host, ())

    def __iter__(self) -> Iterator[KnownHost]:
        return (known for of_name in self._named.values() for known in of_name)

    def may_be_elsewhere(self, host: str) -> bool:
        """True if a registry that is not part of the picture may have a host."""
        return not self._picture.is_whole and host.endswith(_REGISTRY_SUFFIX)

    def meant(self, host: str, namespace: str) -> str:
        """The host that was probably meant, empty if none is near."""
        full = self._picture.full_host(host, namespace)
        near = self._near.nearest(full)
        if not near and "." not in host:
            near = next((other for other in self._by_first_label.get(host, ()) if other != full), "")
        if not near and host.count(".") == 1:  # reviews.shop for reviews.shop.svc.cluster.local
            near = f"{host}.svc.{self._picture.domain}"
            near = near if near in self._named else ""
        return near if near != host else ""

    @cached_property
    def _by_first_label(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for host in self._named:
            found.setdefault(host.partition(".")[0], []).append(host)
        return found

    @cached_property
    def _near(self) -> NearNames:
        return NearNames(self._named)


def _known_hosts(picture: AnalysisInput) -> Iterator[KnownHost]:
    default = picture.mesh.default_service_export_to
    for service in picture.services.values():
        if service is not None and service.config is None:
            ports = tuple(HostPort(p.number, p.name, p.protocol.value) for p in service.ports)
            visible = export_namespaces(service.export_to, default, service.namespace)
            yield KnownHost(service.host, service.namespace, ports, visible, {}, None)
    for entry in picture.of("ServiceEntry"):
        spec = entry.spec
        ports = tuple(HostPort(p.number, p.name, p.protocol) for p in spec.ports)
        visible = export_namespaces(spec.export_to, default, entry.namespace)
        selector = spec.workload_selector.labels if spec.workload_selector else {}
        for host in spec.hosts:
            # Unlike in other objects, a name without a dot is not short for that of a service in Kubernetes.
            yield KnownHost(host.lower(), entry.namespace, ports, visible, selector, entry)
    for config in picture.of_kubernetes("Service"):
        ports = tuple(
            HostPort(int(p.get("port") or 0), str(p.get("name", "")), str(p.get("protocol", "")))
            for p in as_objects(config.spec, "spec", "ports")
        )
        exports = [e.strip() for e in config.annotations.get(EXPORT_ANNOTATION, "").split(",") if e.strip()]
        visible = export_namespaces(exports, (), config.namespace)
        host = f"{config.name}.{config.namespace}.svc.{picture.domain}"
        yield KnownHost(host, config.namespace, ports, visible, {}, config)


# -- the name that was probably meant by one that is not there


_SIMILAR = 0.85
_ALIKE = 0.6
_COMPARISONS = 20
"""Names that are compared with all others, one by one; slips of one character are found without that."""

_CANDIDATES = 2_000


class NearNames:
    """Names, with an index of what each is without one of its characters.

    Mutable state: how many comparisons are left. An analysis of thousands of wrong names gives hints for slips of one
    character only.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._left = _COMPARISONS

    def nearest(self, name: str) -> str:
        """The nearest other name; empty if none is near."""
        for key in (name, *_shortened(name)):
            for other in self._index.get(key, ()):
                if other != name and _is_slip(name, other):
                    return other
        if not self._left:
            return ""
        self._left -= 1
        pool = [n for n in self._names if n != name and abs(len(n) - len(name)) <= len(name) // 4]
        found = difflib.get_close_matches(name, pool[:_CANDIDATES], n=1, cutoff=_SIMILAR)
        return next((other for other in found if _is_slip(name, other)), "")

    @cached_property
    def _index(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self._names:
            for key in (name, *_shortened(name)):
                found.setdefault(key, []).append(name)
        return found


def _is_slip(name: str, other: str) -> bool:
    """True if two names differ as a slip makes them differ: not in a number, and not in a whole short label."""
    if re.sub(r"\D", "", name) != re.sub(r"\D", "", other):
        return False
    ours, theirs = name.split("."), other.split(".")
    while ours and theirs and ours[-1] == theirs[-1]:
        ours.pop()
        theirs.pop()
    return difflib.SequenceMatcher(None, ".".join(ours), ".".join(theirs)).ratio() >= _ALIKE


def _shortened(name: str) -> Iterator[str]:
    """A name without one of its characters, for each."""
    return (name[:at] + name[at + 1 :] for at in range(len(name)))
