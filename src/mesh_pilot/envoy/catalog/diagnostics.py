"""Problems of configuration that only show at a proxy, or next to other objects, as plain values for logs and pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Protocol, TypeAlias, TypeVar

import attrs

from mesh_pilot.envoy.catalog.generators import SetKey
from mesh_pilot.envoy.envoy_filter.outcome import PatchOutcome
from mesh_pilot.envoy.envoy_filter.parse import parsed
from mesh_pilot.envoy.envoy_filter.patch import PatchProblem, PatchRef
from mesh_pilot.envoy.filters.ext_authz import MissingProvider, missing_providers
from mesh_pilot.envoy.filters.global_rate_limit import server_problems
from mesh_pilot.envoy.gateway.listeners import gateway_conflicts
from mesh_pilot.envoy.listeners.outbound import outbound_conflicts
from mesh_pilot.envoy.telemetry.problems import default_provider_problems, telemetry_problems
from mesh_pilot.envoy.tls.secrets import withheld
from mesh_pilot.mesh.legacy.problems import legacy_problems
from mesh_pilot.mesh.listeners.conflicts import Conflict
from mesh_pilot.mesh.listeners.inbound import merged_inbound_ports
from mesh_pilot.mesh.policies.extensions import extension_trouble
from mesh_pilot.mesh.proxy.keys import ProxyKeys
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.settings.zone_awareness import zone_aware_objects
from mesh_pilot.model.config import ConfigKey, Problem, Severity
from mesh_pilot.model.proxy import SELF_DISCOVERY, NodeType
from mesh_pilot.model.resource import SECRET
from mesh_pilot.world.view import View

REFERRING_KINDS = (
    "Telemetry",
    "WasmPlugin",
    "TrafficExtension",
    "GlobalRateLimit",
    "Policy",
    "ServiceRoleBinding",
    "RbacConfig",
)
"""Kinds whose objects may name others that cannot be used."""

CREDENTIALS_CHECKED = 100
"""Credentials checked for each proxy."""

T = TypeVar("T")

ByProxies: TypeAlias = Mapping[T, list[str]]
"""Problems, each with the sorted names of the connected proxies that have it."""


@attrs.frozen(cache_hash=True)
class PatchFailure:
    """A patch of an EnvoyFilter that has no effect, or only in part, on a resource of a proxy."""

    object: str
    """``EnvoyFilter/shop/limits``."""
    field: str
    """Path of the patch: ``spec.configPatches[0]``."""
    resource: str
    """``cluster outbound|80||a``; empty if the patch is wrong whatever it applies to."""
    reason: str
    severity: Severity

    @property
    def patch(self) -> int:
        """The index in ``spec.configPatches``."""
        return int(self.field.removeprefix("spec.configPatches[").removesuffix("]"))

    @property
    def name(self) -> str:
        """``shop/limits``."""
        return self.object.partition("/")[2]


@attrs.frozen(cache_hash=True)
class DeniedRequests:
    """AuthorizationPolicies with action CUSTOM whose provider is unavailable: what they match is denied."""

    objects: tuple[str, ...]
    reason: str


@attrs.frozen(cache_hash=True)
class WithheldCredential:
    """A credential that a proxy requests and is not sent."""

    credential: str
    reason: str


@attrs.frozen(cache_hash=True)
class UnusedZones:
    """Zone aware load balancing that has no effect at a proxy."""

    object: str
    """The object that turns it on: ``MeshConfig``, or ``DestinationRule/shop/web``."""
    reason: str = f"the bootstrap has no local cluster (metadata {SELF_DISCOVERY}): requests go to all zones alike"


class OpenProxy(Protocol):
    """The resources of a connected proxy."""

    @property
    def name(self) -> str: ...

    @property
    def is_agent(self) -> bool: ...

    @property
    def target(self) -> ProxyKeys: ...

    def requested(self, type_url: str) -> Set[str]: ...

    def patch_problems(self, seen: dict[SetKey, PatchOutcome]) -> Iterable[PatchProblem]: ...

    def missing_patches(self) -> Iterable[PatchProblem]: ...

    def unmatched_patches(self, seen: dict[SetKey, PatchOutcome]) -> Iterable[PatchProblem]: ...


class Diagnostics:
    """Problems at the connected proxies now. Each method looks at all proxies, for one kind of problem."""

    def __init__(self, view: View, proxies: Iterable[OpenProxy]) -> None:
        self._view = view
        self._proxies = sorted(proxies, key=lambda proxy: proxy.name)

    def patches(self) -> ByProxies[PatchFailure]:
        """Patches of EnvoyFilters that could not be applied, and those that match at no proxy that they are for."""
        seen: dict[SetKey, PatchOutcome] = {}
        found = _by_problem((proxy.name, proxy.patch_problems(seen)) for proxy in self._proxies)
        told = {problem.ref for problem in found}.union(*(outcome.matches.found for outcome in seen.values()))
        missed = _by_problem((proxy.name, proxy.unmatched_patches(seen)) for proxy in self._proxies)
        first: dict[PatchRef, PatchProblem] = {}
        for problem, proxies in missed.items():
            if problem.ref not in told:
                # What came nearest to a match differs from proxy to proxy: the first is told.
                names = found.setdefault(first.setdefault(problem.ref, problem), [])
                names[:] = sorted({*names, *proxies})
        # Of two Envoys of a proxy, as during a hot restart, the newer counts.
        newest = {proxy.name: proxy for proxy in self._proxies if not proxy.is_agent}
        found.update(_by_problem((name, proxy.missing_patches()) for name, proxy in newest.items()))
        return {_failure(problem): proxies for problem, proxies in found.items()}

    def conflicts(self) -> ByProxies[Conflict]:
        """Services and Gateways that have no place on a listener."""
        return _by_problem((proxy.name, listener_conflicts(self._view, proxy.target)) for proxy in self._proxies)

    def denied(self) -> ByProxies[DeniedRequests]:
        """Requests denied because the provider of a CUSTOM policy is unavailable."""
        found = _by_problem((proxy.name, self._missing_providers(proxy)) for proxy in self._proxies)
        return {DeniedRequests(tuple(map(str, m.policies)), m.reason): proxies for m, proxies in found.items()}

    def credentials(self) -> ByProxies[WithheldCredential]:
        """Credentials requested and not sent; of a proxy that requests more than `CREDENTIALS_CHECKED`, only some."""
        return _by_problem((proxy.name, self._withheld(proxy)) for proxy in self._proxies)

    def zones(self) -> ByProxies[UnusedZones]:
        """Zone aware load balancing at proxies that have no local cluster; no proxyless client has one."""
        return _by_problem((proxy.name, self._unused_zones(proxy.target.scope)) for proxy in self._proxies)

    def _unused_zones(self, scope: OutboundScope) -> Iterator[UnusedZones]:
        if not scope.has_local_cluster and not scope.grpc:
            yield from map(UnusedZones, zone_aware_objects(self._view, scope.namespace))

    def _missing_providers(self, proxy: OpenProxy) -> tuple[MissingProvider, ...]:
        workload = proxy.target.workload
        scope = workload.scope
        return missing_providers(self._view, scope.namespace, workload.labels, grpc=scope.grpc)

    def _withheld(self, proxy: OpenProxy) -> list[WithheldCredential]:
        workload = proxy.target.workload
        reasons = {
            name: withheld(self._view, workload, name) for name in islice(proxy.requested(SECRET), CREDENTIALS_CHECKED)
        }
        return [WithheldCredential(name, reason) for name, reason in sorted(reasons.items()) if reason]


def listener_conflicts(view: View, target: ProxyKeys) -> tuple[Conflict, ...]:
    """Every conflict on a proxy's listeners; of a sidecar outbound, then inbound. A proxyless client has none."""
    if target.scope.grpc:
        return ()
    if target.scope.type is NodeType.ROUTER:
        return gateway_conflicts(view, target.workload)
    return (*outbound_conflicts(view, target.scope), *merged_inbound_ports(view, target.workload).conflicts)


def object_problems(view: View, key: ConfigKey) -> tuple[Problem, ...]:
    """Problems of one object whatever proxy it applies to, which validation does not see.

    Validation knows neither Envoy's messages, which EnvoyFilters patch, nor other objects: the providers that a
    Telemetry names, the modules of extensions, the servers of GlobalRateLimits, the services and roles that legacy
    policies name.
    """
    match key.kind:
        case "WasmPlugin" | "TrafficExtension":
            trouble = extension_trouble(view, key)
            path = "spec.url" if key.kind == "WasmPlugin" else "spec.wasm.url"
            return (Problem(path, trouble, Severity.WARNING),) if trouble else ()
        case "EnvoyFilter":
            return tuple(Problem(p.path, p.reason, p.severity) for p in parsed(view, key).problems)
        case "Telemetry":
            return telemetry_problems(view, key)
        case "GlobalRateLimit":
            return server_problems(view, key)
    return legacy_problems(view, key)


def mesh_config_problems(view: View) -> tuple[Problem, ...]:
    """The same for the mesh config: its default providers."""
    return default_provider_problems(view)


def _failure(problem: PatchProblem) -> PatchFailure:
    return PatchFailure(str(problem.config), problem.path, problem.resource, problem.reason, problem.severity)


def _by_problem(problems: Iterable[tuple[str, Iterable[T]]]) -> dict[T, list[str]]:
    found: dict[T, list[str]] = {}
    for proxy, of_proxy in problems:
        for problem in of_proxy:
            names = found.setdefault(problem, [])
            if names[-1:] != [proxy]:  # a proxy that reconnects is connected twice for a moment
                names.append(proxy)
    return found
