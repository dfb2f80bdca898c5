"""Clients and servers that disagree on mutual TLS: DestinationRules against PeerAuthentications."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.api.istio.security import v1beta1 as security
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.analyzers.policies import selector_of
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found
from mesh_pilot.model.config import Config
from mesh_pilot.model.service import Endpoint, Service, ServiceKey

_Client = api.ClientTlsSettingsTlSmode
_Server = security.PeerAuthenticationMutualTlsMode


def disagreements(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """DestinationRules whose TLS mode the servers refuse."""
    policies = PeerPolicies(survey)
    if not policies.any:
        return
    for config in survey.of("DestinationRule"):
        for path, port, tls in _settings(config.spec):
            if tls.mode not in (_Client.DISABLE, _Client.ISTIO_MUTUAL):
                continue
            for service in _services(survey, config):
                if service.external:
                    continue
                policy = policies.against(service, port, plaintext=tls.mode is _Client.DISABLE)
                if policy is not None:
                    plain = tls.mode is _Client.DISABLE
                    type = codes.PLAINTEXT_TO_STRICT if plain else codes.MUTUAL_TO_PLAINTEXT
                    where = f"{policy.key} ({policy.origin})"
                    yield found(type, config, f"{path}.mode", f"{service.host}{f':{port}' if port else ''}", where)
                    break


def _settings(spec: api.DestinationRule) -> Iterator[tuple[str, int, api.ClientTlsSettings]]:
    """Each TLS setting with its path and port (0: all)."""
    levels = [("spec.trafficPolicy", spec.traffic_policy)]
    levels += [(f"spec.subsets[{i}].trafficPolicy", subset.traffic_policy) for i, subset in enumerate(spec.subsets)]
    for path, policy in levels:
        if policy is None:
            continue
        if policy.tls is not None:
            yield f"{path}.tls", 0, policy.tls
        for index, settings in enumerate(policy.port_level_settings):
            if settings.tls is not None and settings.port is not None:
                yield f"{path}.portLevelSettings[{index}].tls", settings.port.number, settings.tls


def _services(survey: AnalysisContext, config: Config) -> Iterator[Service]:
    host = survey.full_host(config.spec.host, config.namespace)
    if not host.startswith("*"):
        for known in survey.hosts.named(host):
            service = survey.picture.services.get(ServiceKey(known.host, known.namespace))
            if service is not None:
                yield service
        return
    for service in survey.picture.services.values():
        if service is not None and service.host.endswith(host[1:]):
            yield service


class PeerPolicies:
    """PeerAuthentications by namespace, the oldest first."""

    def __init__(self, survey: AnalysisContext) -> None:
        self._root = survey.root_namespace
        self._endpoints = survey.picture.endpoints
        self._general: dict[str, Config] = {}
        self._selecting: dict[str, list[Config]] = {}
        for config in survey.of("PeerAuthentication"):
            if selector_of(config):
                self._selecting.setdefault(config.namespace, []).append(config)
            else:
                self._general.setdefault(config.namespace, config)

    @property
    def any(self) -> bool:
        return bool(self._general or self._selecting)

    def against(self, service: Service, port: int, *, plaintext: bool) -> Config | None:
        """The policy because of which endpoints of a service refuse a client; None if all take it."""
        refused = _Server.STRICT if plaintext else _Server.DISABLE
        endpoints = self._endpoints.get(service.key, ())
        wanted = {p.name for p in service.ports if port in (0, p.number)}
        serving: list[Endpoint | None] = [e for e in endpoints if e.service_port in wanted]
        for endpoint in serving or [None]:
            policy, mode = self._mode(service.namespace, endpoint)
            if mode is refused:
                return policy
        return None

    def _mode(self, namespace: str, endpoint: Endpoint | None) -> tuple[Config | None, _Server]:
        """The policy that decides for an endpoint, or for one that nothing selects, and its mode."""
        if endpoint is not None:
            for config in self._selecting.get(namespace, ()):
                if selector_of(config).items() <= endpoint.labels.items():
                    own = config.spec.port_level_mtls.get(endpoint.port) or config.spec.mtls
                    if own is not None and own.mode is not _Server.UNSET:
                        return config, own.mode
                    break
        for place in (namespace, self._root):
            general = self._general.get(place)
            if general is not None and general.spec.mtls is not None and general.spec.mtls.mode is not _Server.UNSET:
                return general, general.spec.mtls.mode
        return None, _Server.PERMISSIVE
