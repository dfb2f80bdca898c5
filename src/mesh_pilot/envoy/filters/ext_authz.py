"""AuthorizationPolicies with action CUSTOM: an external authorization server (an extension provider) decides.

There are two filters. The first, RBAC with only shadow rules, refuses nothing: it writes into dynamic metadata which
CUSTOM policy a request or connection matches. The second, ``ext_authz``, asks the provider where that is set. If the
provider cannot be used, the RBAC filter denies what they match, since no server can decide about it, and lets all else
pass. ``failOpen`` is about a provider that does not answer, and changes nothing about one that cannot be asked.

Rules: Istio's AuthorizationPolicy reference; Envoy's external authorization filters.
"""

from __future__ import annotations

from datetime import timedelta

import attrs
from envoy.config.core.v3 import base_pb2, config_source_pb2, grpc_service_pb2, http_uri_pb2
from envoy.config.listener.v3.listener_components_pb2 import Filter
from envoy.config.rbac.v3.rbac_pb2 import RBAC
from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2 as http_pb2
from envoy.extensions.filters.http.rbac.v3.rbac_pb2 import RBAC as HttpRbac
from envoy.extensions.filters.network.ext_authz.v3 import ext_authz_pb2 as network_pb2
from envoy.extensions.filters.network.rbac.v3.rbac_pb2 import RBAC as NetworkRbac
from envoy.type.matcher.v3 import metadata_pb2, string_pb2, value_pb2
from envoy.type.v3 import http_status_pb2
from google.protobuf import any_pb2, duration_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, any_of_encoded, duration, encode, prefix
from mesh_pilot.envoy.filters.rbac.matchers import WILDCARD, metadata, text
from mesh_pilot.envoy.filters.rbac.policies import (
    CUSTOM_POLICY_PREFIX,
    NETWORK_RBAC,
    TCP_STAT_PREFIX,
    context_policies,
    grpc_server_rbac,
    policies_for,
    rules_of,
)
from mesh_pilot.envoy.filters.rbac.rules import EnforcementPoint
from mesh_pilot.envoy.filters.translator import FilterClass, FilterTranslator
from mesh_pilot.istio.rules.extension_providers import GrpcProvider, HttpProvider, authorizer_reasons
from mesh_pilot.mesh.names.resources import HTTP_RBAC
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.mesh.policies.telemetry import extension_provider, provider_cluster
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

RequestBody = mesh_api.MeshConfigExtensionProviderEnvoyExternalAuthorizationRequestBody

NETWORK_EXT_AUTHZ = "envoy.filters.network.ext_authz"

SHADOW_PREFIX = "istio_ext_authz_"
"""Prefix of the dynamic metadata in which the shadow rules note what they matched."""
DEFAULT_TIMEOUT = timedelta(seconds=600)
"""The timeout of a provider that has none in its settings."""

DENIED_SUFFIX = "-deny-due-to-bad-CUSTOM-action"
"""The end of the name of a rule whose provider cannot be asked."""


@attrs.frozen
class ExtAuthzConfig:
    """The configurations of both ``ext_authz`` filters for a provider."""

    http: http_pb2.ExtAuthz
    network: network_pb2.ExtAuthz | None
    """None: the provider only takes HTTP requests; connections pass without being checked."""


@attrs.frozen
class ProviderUnavailable:
    """A provider that cannot be asked."""

    reason: str


@attrs.frozen
class MissingProvider:
    """CUSTOM policies that deny what they match, because their provider cannot be asked."""

    policies: tuple[ConfigKey, ...]
    reason: str


@attrs.frozen
class Delegation:
    """The provider that the CUSTOM policies of a proxy ask, and the policies that ask none."""

    asked: ExtAuthzConfig | None = None
    asking: tuple[ConfigKey, ...] = ()
    """The policies whose provider is ``asked``."""
    missing: tuple[MissingProvider, ...] = ()
    """All others."""

    @property
    def denying(self) -> tuple[ConfigKey, ...]:
        """The policies that deny what they match."""
        return tuple(key for each in self.missing for key in each.policies)


def missing_providers(view: View, namespace: str, labels: Labels, *, grpc: bool) -> tuple[MissingProvider, ...]:
    """The CUSTOM policies of a proxy or gRPC server that deny because no provider can be asked."""
    policies = policies_for(view, namespace, labels).custom
    if grpc and policies:
        return (MissingProvider(policies, "a gRPC server has no way to ask"),)
    return delegation(view, namespace, policies).missing


# -- the filters


def _shadow_hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    policies = context_policies(view, context).custom
    encoded = _http_configs(view, context.namespace, policies)[0] if policies else None
    return None if encoded is None else any_of_encoded(HttpRbac, encoded)


def _ext_authz_hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    policies = context_policies(view, context).custom
    encoded = _http_configs(view, context.namespace, policies)[1] if policies else None
    return None if encoded is None else any_of_encoded(http_pb2.ExtAuthz, encoded)


def _grpc_server(view: View, context: PolicyContext) -> any_pb2.Any | None:
    """A gRPC server cannot ask a provider: it denies what the provider would be asked about."""
    return grpc_server_rbac(view, context_policies(view, context).custom)


def custom_network_filters(view: View, context: PolicyContext) -> list[Filter]:
    """The filters for connections of a context, in order; none if the provider only takes HTTP requests."""
    policies = context_policies(view, context).custom
    encoded = _network_filters(view, context.namespace, policies) if policies else ()
    return [Filter.FromString(body) for body in encoded]


@derived
def _http_configs(view: View, namespace: str, policies: tuple[ConfigKey, ...]) -> tuple[bytes | None, bytes | None]:
    """The encoded configurations of the shadow filter and of ``ext_authz``; None: without that filter."""
    if rules_of(view, policies, EnforcementPoint.HTTP).enforced is None:
        return None, None
    found = delegation(view, namespace, policies)
    config = HttpRbac()
    _put_rules(view, config, found, EnforcementPoint.HTTP)
    return encode(config), encode(found.asked.http) if found.asked is not None else None


@derived
def _network_filters(view: View, namespace: str, policies: tuple[ConfigKey, ...]) -> tuple[bytes, ...]:
    """The encoded filters for connections."""
    if rules_of(view, policies, EnforcementPoint.TCP).enforced is None:
        return ()
    found = delegation(view, namespace, policies)
    if found.asked is not None and found.asked.network is None:
        found = attrs.evolve(found, asked=None, asking=())
    if found == Delegation():
        return ()
    config = NetworkRbac(stat_prefix=TCP_STAT_PREFIX)
    _put_rules(view, config, found, EnforcementPoint.TCP)
    filters = [Filter(name=NETWORK_RBAC, typed_config=any_of(config))]
    if found.asked is not None and found.asked.network is not None:
        filters.append(Filter(name=NETWORK_EXT_AUTHZ, typed_config=any_of(found.asked.network)))
    return tuple(map(encode, filters))


def _put_rules(view: View, config: HttpRbac | NetworkRbac, found: Delegation, point: EnforcementPoint) -> None:
    """Put the rules of policies that ask into a filter as shadow rules, and of those that deny as enforced ones."""
    if (denied := rules_of(view, found.denying, point).enforced) is not None:
        rules = RBAC.FromString(denied)
        config.rules.action = rules.action
        for name, policy in rules.policies.items():
            config.rules.policies[f"{name}{DENIED_SUFFIX}"].CopyFrom(policy)
    if (shadow := rules_of(view, found.asking, point).enforced) is not None:
        config.shadow_rules_stat_prefix = SHADOW_PREFIX
        config.shadow_rules.MergeFromString(shadow)


RBAC_SHADOW = FilterTranslator(
    name=HTTP_RBAC,
    config=HttpRbac,
    hcm=_shadow_hcm,
    grpc_server=_grpc_server,
    filter_class=FilterClass.AUTHZ,
)
EXT_AUTHZ = FilterTranslator(
    name="envoy.filters.http.ext_authz",
    config=http_pb2.ExtAuthz,
    hcm=_ext_authz_hcm,
    filter_class=FilterClass.AUTHZ,
)


# -- the provider


@derived
def delegation(view: View, namespace: str, policies: tuple[ConfigKey, ...]) -> Delegation:
    """The provider that these policies ask, at proxies of a namespace.

    A workload can ask one provider. Where its policies name several that could be asked, all of these deny.
    """
    by_name: dict[str, list[ConfigKey]] = {}
    for key in policies:
        by_name.setdefault(_provider_name(view, key), []).append(key)
    providers = {name: provider_config(view, namespace, name) for name in by_name}
    usable = {name: config for name, config in providers.items() if isinstance(config, ExtAuthzConfig)}
    missing = [
        MissingProvider(tuple(by_name[name]), config.reason)
        for name, config in providers.items()
        if isinstance(config, ProviderUnavailable)
    ]
    asking = tuple(key for name in usable for key in by_name[name])
    asked = Delegation()
    if len(usable) == 1:
        asked = Delegation(next(iter(usable.values())), asking)
    elif usable:
        reason = f"there can be one provider for a workload, not {', '.join(usable)}"
        missing.append(MissingProvider(asking, reason))
    return attrs.evolve(asked, missing=tuple(missing))


@derived
def provider_config(view: View, namespace: str, name: str) -> ExtAuthzConfig | ProviderUnavailable:
    """The configuration for a provider, for proxies of a namespace."""
    provider = extension_provider(view, name)
    if provider is None or provider.name != name:
        return ProviderUnavailable(f"the mesh config has no extension provider {name}")
    settings = provider.envoy_ext_authz_http or provider.envoy_ext_authz_grpc
    if settings is None:
        return ProviderUnavailable(f"extension provider {name} is neither envoyExtAuthzHttp nor envoyExtAuthzGrpc")
    refused = next(authorizer_reasons(settings), None)
    if refused is not None:
        return ProviderUnavailable(f"extension provider {name}: {' '.join(refused)}")
    reached = provider_cluster(view, namespace, settings.service, settings.port)
    if reached is None:
        return ProviderUnavailable(
            f"extension provider {name}: no service {settings.service} with port {settings.port}"
        )
    cluster, host = reached
    if isinstance(settings, HttpProvider):
        return ExtAuthzConfig(_over_http(settings, cluster, host), None)
    service = _grpc_service(settings, cluster, host)
    return ExtAuthzConfig(_over_grpc(settings, service), _network(settings, service))


@derived
def _provider_name(view: View, key: ConfigKey) -> str:
    config = view.config(key)
    spec: api.AuthorizationPolicy | None = config.spec if config else None
    return spec.provider.name if spec and spec.provider else ""


def _over_http(settings: HttpProvider, cluster: str, host: str) -> http_pb2.ExtAuthz:
    service = http_pb2.HttpService(
        server_uri=http_uri_pb2.HttpUri(uri=f"http://{host}", cluster=cluster, timeout=_timeout(settings)),
        path_prefix=settings.path_prefix,
    )
    for name, value in sorted(settings.include_additional_headers_in_check.items()):
        service.authorization_request.headers_to_add.append(base_pb2.HeaderValue(key=name, value=value))
    response = service.authorization_response
    for headers, matcher in (
        (settings.headers_to_upstream_on_allow, response.allowed_upstream_headers),
        (settings.headers_to_downstream_on_deny, response.allowed_client_headers),
        (settings.headers_to_downstream_on_allow, response.allowed_client_headers_on_success),
    ):
        if headers:
            matcher.CopyFrom(_header_names(headers))
    config = _common(settings)
    config.http_service.CopyFrom(service)
    sent = settings.include_request_headers_in_check or settings.include_headers_in_check
    if sent:
        config.allowed_headers.CopyFrom(_header_names(sent))
    return config


def _over_grpc(settings: GrpcProvider, service: grpc_service_pb2.GrpcService) -> http_pb2.ExtAuthz:
    config = _common(settings)
    config.grpc_service.CopyFrom(service)
    return config


def _network(settings: GrpcProvider, service: grpc_service_pb2.GrpcService) -> network_pb2.ExtAuthz:
    return network_pb2.ExtAuthz(
        stat_prefix=TCP_STAT_PREFIX,
        grpc_service=service,
        failure_mode_allow=settings.fail_open,
        transport_api_version=config_source_pb2.V3,
        filter_enabled_metadata=_is_custom(NETWORK_RBAC),
    )


def _common(settings: HttpProvider | GrpcProvider) -> http_pb2.ExtAuthz:
    config = http_pb2.ExtAuthz(
        failure_mode_allow=settings.fail_open,
        clear_route_cache=settings.clear_route_cache,
        transport_api_version=config_source_pb2.V3,
        filter_enabled_metadata=_is_custom(HTTP_RBAC),
    )
    status = settings.status_on_error
    if status.isdecimal() and int(status) in http_status_pb2.StatusCode.values():
        config.status_on_error.code = int(status)
    body: RequestBody | None = settings.include_request_body_in_check
    if body is not None:
        config.with_request_body.CopyFrom(
            http_pb2.BufferSettings(
                max_request_bytes=body.max_request_bytes,
                allow_partial_message=body.allow_partial_message,
                pack_as_bytes=body.pack_as_bytes,
            )
        )
    return config


def _grpc_service(settings: GrpcProvider, cluster: str, host: str) -> grpc_service_pb2.GrpcService:
    target = grpc_service_pb2.GrpcService.EnvoyGrpc(cluster_name=cluster, authority=host)
    return grpc_service_pb2.GrpcService(envoy_grpc=target, timeout=_timeout(settings))


def _timeout(settings: HttpProvider | GrpcProvider) -> duration_pb2.Duration:
    return duration(settings.timeout if settings.timeout is not None else DEFAULT_TIMEOUT)


def _is_custom(rbac_filter: str) -> metadata_pb2.MetadataMatcher:
    """The shadow rules of that filter matched a CUSTOM policy."""
    custom = value_pb2.ValueMatcher(string_match=prefix(CUSTOM_POLICY_PREFIX))
    return metadata(rbac_filter, (f"{SHADOW_PREFIX}shadow_effective_policy_id",), custom)


def _header_names(names: list[str]) -> string_pb2.ListStringMatcher:
    """Header names, which may have a wildcard at either end; case-insensitive."""
    patterns = []
    for name in names:
        matcher = text(name)
        matcher.ignore_case = name != WILDCARD
        patterns.append(matcher)
    return string_pb2.ListStringMatcher(patterns=patterns)
