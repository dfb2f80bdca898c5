"""The survey: a picture, and what is found out of it once for all analyzers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol

from mesh_pilot.explain.analysis.findings import AnalysisMessage, MessageType
from mesh_pilot.explain.analysis.hosts import Hosts
from mesh_pilot.explain.analysis.input import AnalysisInput
from mesh_pilot.explain.analysis.served_ports import PortsServed
from mesh_pilot.explain.analysis.workloads import KnownWorkload, Workloads, workloads_of
from mesh_pilot.model.config import Config


class AnalysisContext:
    """A picture with its indexes. Analyzers read it and change nothing."""

    def __init__(self, picture: AnalysisInput) -> None:
        self.picture = picture

    def of(self, kind: str) -> tuple[Config, ...]:
        """The objects of a kind of Istio's, oldest first."""
        return self.picture.of(kind)

    def of_kubernetes(self, kind: str, group: str = "") -> tuple[Config, ...]:
        """The objects of a kind of Kubernetes', by its group without a version."""
        return self.picture.of_kubernetes(kind, group)

    @property
    def mesh(self) -> Any:
        """The MeshConfig."""
        return self.picture.mesh

    @property
    def root_namespace(self) -> str:
        return self.picture.root_namespace

    @cached_property
    def hosts(self) -> Hosts:
        return Hosts(self.picture)

    @cached_property
    def workloads(self) -> Workloads:
        return Workloads(workloads_of(self.picture))

    @cached_property
    def ports(self) -> PortsServed:
        return PortsServed(self.picture, self.workloads)

    @cached_property
    def has_pods(self) -> bool:
        """True if the objects are those of a Kubernetes cluster, workloads and all."""
        return bool(self.of_kubernetes("Pod"))

    @property
    def knows_clients(self) -> bool:
        """True if workloads that only send requests are known, too: nothing but a Pod or a connection shows them."""
        return self.has_pods or self.picture.proxies is not None

    def knows_servers(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """True if the workloads of a namespace (all, for the root namespace) that serve would be known.

        Not those behind a Gateway: in files, its selector is all that there is of them.
        """
        if self.knows_clients:
            return True
        if labels and any(labels.items() <= gateway.spec.selector.items() for gateway in self.of("Gateway")):
            return False
        return bool(self.workloads.count if namespace == self.root_namespace else self.workloads.count_in(namespace))

    def selected(self, namespace: str, labels: Mapping[str, str]) -> tuple[KnownWorkload, ...]:
        """The workloads that an object of a namespace selects; of the root namespace, those of all."""
        return self.workloads.matching("" if namespace == self.root_namespace else namespace, labels)

    def full_host(self, host: str, namespace: str) -> str:
        return self.picture.full_host(host, namespace)


class Analyzer(Protocol):
    """A function that finds the problems of one topic."""

    __name__: str
    __module__: str

    def __call__(self, survey: AnalysisContext, /) -> Iterator[AnalysisMessage]: ...


def found(
    type: MessageType, config: Config, path: str, *arguments: object, fix: str = "", line: int = 0
) -> AnalysisMessage:
    """A message."""
    return AnalysisMessage(type, config, path, arguments, fix, line)


def full_name(config: Config) -> str:
    """``shop/reviews``."""
    return f"{config.namespace}/{config.name}" if config.namespace else config.name


def listed(names: object) -> str:
    """A list as Istio prints it: ``[a b]``."""
    return f"[{' '.join(map(str, names))}]" if isinstance(names, (list, tuple)) else str(names)


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as Kubernetes prints a selector: ``app=web,tier=1``."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
