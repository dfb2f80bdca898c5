"""CUSTOM: who else decides about requests and connections: an ``ext_authz`` filter for an extension provider.

An RBAC filter before it finds, without refusing anything, what the policies are about, and leaves a mark by which the
provider is asked. Where the provider is not to be had, everything is refused, because nobody says that it may pass.
"""

from __future__ import annotations

from datetime import timedelta

import attrs
from envoy.config.core.v3 import base_pb2, config_source_pb2, grpc_service_pb2, http_uri_pb2
from envoy.config.rbac.v3.rbac_pb2 import RBAC
from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2 as http_pb2
from envoy.extensions.filters.network.ext_authz.v3 import ext_authz_pb2 as network_pb2
from envoy.type.matcher.v3 import metadata_pb2, string_pb2, value_pb2
from envoy.type.v3 import http_status_pb2
from google.protobuf import duration_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.envoy.core.protobuf import duration, prefix
from mesh_pilot.envoy.filters.rbac.matchers import ANY, metadata, text
from mesh_pilot.envoy.filters.rbac.rules import ALWAYS
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.extension_providers import extension_provider, provider_cluster
from mesh_pilot.mesh.names import HTTP_RBAC, outbound_sni
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world.view import View

Http = mesh_api.MeshConfigExtensionProviderEnvoyExternalAuthorizationHttpProvider
Grpc = mesh_api.MeshConfigExtensionProviderEnvoyExternalAuthorizationGrpcProvider
Body = mesh_api.MeshConfigExtensionProviderEnvoyExternalAuthorizationRequestBody

NETWORK_RBAC = "envoy.filters.network.rbac"

MARK = "istio_ext_authz_"
"""Begins the names under which the RBAC filter leaves what it found."""
MARKED = "istio-ext-authz"
"""Begins the names of the policies that are asked about."""
PATIENCE = timedelta(seconds=600)
"""How long a provider may take where it is not said."""

REFUSE_ALL = RBAC(action=RBAC.DENY, policies={"default-deny-all-due-to-bad-CUSTOM-action": ALWAYS})


@attrs.frozen
class Check:
    """How a provider is asked: the configurations of both ``ext_authz`` filters."""

    http: http_pb2.ExtAuthz
    network: network_pb2.ExtAuthz | None
    """None: it can't be asked about connections, which then pass unasked."""


@attrs.frozen
class NoCheck:
    """Nobody can be asked, and why."""

    reason: str


@derived
def check(view: View, namespace: str, keys: tuple[ConfigKey, ...]) -> Check | NoCheck:
    """How the provider of these policies is asked by a proxy of a namespace."""
    names = tuple(dict.fromkeys(_provider_name(view, key) for key in keys))
    if len(names) > 1:
        return NoCheck(f"there can be one provider for a workload, not {', '.join(names)}")
    provider = extension_provider(view, names[0])
    if provider is None:
        return NoCheck(f"the mesh config has no extension provider {names[0]}")
    settings = provider.envoy_ext_authz_http or provider.envoy_ext_authz_grpc
    if settings is None:
        return NoCheck(f"extension provider {names[0]} is neither envoyExtAuthzHttp nor envoyExtAuthzGrpc")
    found = provider_cluster(view, namespace, settings.service, settings.port)
    if found is None:
        return NoCheck(f"extension provider {names[0]}: no service {settings.service} with port {settings.port}")
    cluster, host = found
    if isinstance(settings, Http):
        return Check(_http(settings, cluster, host), None)
    service = _grpc_service(settings, cluster, host)
    return Check(_grpc(settings, service), _network(settings, service))


@derived
def _provider_name(view: View, key: ConfigKey) -> str:
    config = view.config(key)
    spec: api.AuthorizationPolicy | None = config.spec if config else None
    return spec.provider.name if spec and spec.provider else ""


def _http(settings: Http, cluster: str, host: str) -> http_pb2.ExtAuthz:
    service = http_pb2.HttpService(
        server_uri=http_uri_pb2.HttpUri(uri=f"http://{host}", cluster=cluster, timeout=_patience(settings)),
        path_prefix=settings.path_prefix,
    )
    asked = settings.include_request_headers_in_check or settings.include_headers_in_check
    if asked:
        service.authorization_request.allowed_headers.CopyFrom(_headers(asked))
    for name, value in sorted(settings.include_additional_headers_in_check.items()):
        service.authorization_request.headers_to_add.append(base_pb2.HeaderValue(key=name, value=value))
    answer = service.authorization_response
    for headers, into in (
        (settings.headers_to_upstream_on_allow, answer.allowed_upstream_headers),
        (settings.headers_to_downstream_on_deny, answer.allowed_client_headers),
        (settings.headers_to_downstream_on_allow, answer.allowed_client_headers_on_success),
    ):
        if headers:
            into.CopyFrom(_headers(headers))
    filter_ = _common(settings)
    filter_.http_service.CopyFrom(service)
    return filter_


def _grpc(settings: Grpc, service: grpc_service_pb2.GrpcService) -> http_pb2.ExtAuthz:
    filter_ = _common(settings)
    filter_.grpc_service.CopyFrom(service)
    return filter_


def _network(settings: Grpc, service: grpc_service_pb2.GrpcService) -> network_pb2.ExtAuthz:
    return network_pb2.ExtAuthz(
        stat_prefix="tcp.",
        grpc_service=service,
        failure_mode_allow=settings.fail_open,
        transport_api_version=config_source_pb2.V3,
        filter_enabled_metadata=_marked(NETWORK_RBAC),
    )


def _common(settings: Http | Grpc) -> http_pb2.ExtAuthz:
    filter_ = http_pb2.ExtAuthz(
        failure_mode_allow=settings.fail_open,
        clear_route_cache=settings.clear_route_cache,
        transport_api_version=config_source_pb2.V3,
        filter_enabled_metadata=_marked(HTTP_RBAC),
    )
    status = settings.status_on_error
    if status.isdecimal() and int(status) in http_status_pb2.StatusCode.values():
        filter_.status_on_error.code = int(status)
    body: Body | None = settings.include_request_body_in_check
    if body is not None:
        filter_.with_request_body.CopyFrom(
            http_pb2.BufferSettings(
                max_request_bytes=body.max_request_bytes,
                allow_partial_message=body.allow_partial_message,
                pack_as_bytes=body.pack_as_bytes,
            )
        )
    return filter_


def _grpc_service(settings: Grpc, cluster: str, host: str) -> grpc_service_pb2.GrpcService:
    target = grpc_service_pb2.GrpcService.EnvoyGrpc(cluster_name=cluster, authority=outbound_sni(host, settings.port))
    return grpc_service_pb2.GrpcService(envoy_grpc=target, timeout=_patience(settings))


def _patience(settings: Http | Grpc) -> duration_pb2.Duration:
    return duration(settings.timeout if settings.timeout is not None else PATIENCE)


def _marked(filter_name: str) -> metadata_pb2.MetadataMatcher:
    """What the RBAC filter found is one of the policies that are asked about."""
    wanted = value_pb2.ValueMatcher(string_match=prefix(MARKED))
    return metadata(filter_name, (f"{MARK}shadow_effective_policy_id",), wanted)


def _headers(names: list[str]) -> string_pb2.ListStringMatcher:
    """Names of headers in the forms of values; case does not matter."""
    patterns = []
    for name in names:
        matcher = text(name)
        matcher.ignore_case = name != ANY
        patterns.append(matcher)
    return string_pb2.ListStringMatcher(patterns=patterns)
