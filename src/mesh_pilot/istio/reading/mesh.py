"""The mesh-wide settings: Istio's MeshConfig and MeshNetworks, decoded strictly and merged over Istio's defaults."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import attrs
import betterproto2

from mesh_pilot.api.istio.mesh import v1alpha1 as api
from mesh_pilot.api.istio.networking.v1alpha3 import LocalityLoadBalancerSetting
from mesh_pilot.base.reading import member
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.istio.reading import scalars, yaml
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.problems import Problems, TooManyErrorsError, as_reported
from mesh_pilot.istio.rules import mesh_config
from mesh_pilot.istio.rules.context import warning
from mesh_pilot.istio.rules.extension_providers import check_providers
from mesh_pilot.model.config import ConfigError, Origin, Problem, worst_first

M = TypeVar("M", bound=betterproto2.Message)

_Provider = api.MeshConfigExtensionProvider

ROOT_NAMESPACE = "istio-system"
"""The default root namespace: its objects apply to the whole mesh."""

LineOf = Callable[[str], int]
"""The 1-based line of a field path, 0 where there are no lines."""


def decode_mesh(
    document: object,
    *,
    origin: Origin,
    line_of: LineOf = lambda path: 0,
    warnings: list[Problem] | None = None,
    root_namespace: str = ROOT_NAMESPACE,
    under: api.MeshConfig | None = None,
) -> api.MeshConfig:
    """The MeshConfig of a ``mesh.yaml``, merged over ``under``; None: over the defaults.

    A field of the file replaces the default, except ``defaultConfig`` and ``defaultProviders``, which are merged field
    by field, and ``extensionProviders``, merged by name. The document may also be a ConfigMap, or an object with the
    settings as text under ``mesh``. An empty document means the defaults. Raises ConfigError with every problem; adds
    warnings to ``warnings``. ``root_namespace`` is the default of that field.
    """
    data, line_of = _unwrapped(document, "mesh", origin, line_of)
    problems = Problems()
    with _settling(problems, origin, line_of, warnings):
        spec = read_message(api.MeshConfig, data, "", problems)
        merged = default_mesh(root_namespace) if under is None else under
        if spec is not None and isinstance(data, Mapping):
            if "" in (data.get("trustDomain"), data.get("trust_domain")):
                spec.trust_domain = merged.trust_domain
                problems.append(warning("trustDomain", f"is empty: {merged.trust_domain} is used, as in Istio 1.1"))
            merged = _over_defaults(spec, data, merged)
            problems.take(mesh_config.validate_mesh(merged))
            # As written: their paths say which one of the file it is.
            problems.take(check_providers("extensionProviders", spec.extension_providers))
            problems.take(_with_usable_log_format(merged))
    return merged


def decode_networks(
    document: object,
    *,
    origin: Origin,
    line_of: LineOf = lambda path: 0,
    warnings: list[Problem] | None = None,
) -> api.MeshNetworks:
    """The MeshNetworks of a networks file, or of a ConfigMap with them as text under ``meshNetworks``.

    An empty document is not a networks. Raises ConfigError with every problem.
    """
    data, line_of = _unwrapped(document, "meshNetworks", origin, line_of)
    problems = Problems()
    with _settling(problems, origin, line_of, warnings):
        spec = read_message(api.MeshNetworks, data, "", problems) or api.MeshNetworks()
        problems.take(mesh_config.validate_networks(spec))
    return spec


@contextmanager
def _settling(problems: Problems, origin: Origin, line_of: LineOf, warnings: list[Problem] | None) -> Iterator[None]:
    """Raise ConfigError at the end of the block if there are errors; else add the problems to ``warnings``."""
    with suppress(TooManyErrorsError):
        yield
    found = as_reported(problems, line_of)
    if problems.errors:
        raise ConfigError(origin, None, worst_first(found))
    if warnings is not None:
        warnings += found


def _unwrapped(document: object, key: str, origin: Origin, line_of: LineOf) -> tuple[object, LineOf]:
    """The settings, and their lines; unwraps settings that are text inside a ConfigMap or an object."""
    if document is None:
        return {}, line_of
    if not isinstance(document, Mapping):
        return document, line_of
    is_map = document.get("kind") == "ConfigMap"
    holder = document.get("data") if is_map else document
    text = member(holder, key)
    if not isinstance(text, str):
        if is_map:
            problem = Problem(f"data.{key}", "is missing: the settings are expected there, as text")
            raise ConfigError(origin, None, as_reported(Problems([problem]), line_of))
        return document, line_of
    start = line_of(f"data.{key}" if is_map else key)
    inner = list(_inner(text, origin, start))
    if len(inner) > 1:
        raise ConfigError(origin, None, (Problem(key, "has a second document: only one is expected", line=start),))
    if not inner:
        return {}, line_of
    return inner[0].data, lambda path: start + inner[0].line_of(path) if start else 0


def _inner(text: str, origin: Origin, start: int) -> Iterator[yaml.Document]:
    """The documents of a block scalar that starts on the line after `start`."""
    for document in yaml.load(text, origin):
        if isinstance(document, ConfigError):
            problems = tuple(attrs.evolve(p, line=p.line + start if start else 0) for p in document.problems)
            raise ConfigError(attrs.evolve(origin, line=problems[0].line), None, problems)
        yield document


def _over_defaults(spec: api.MeshConfig, data: Mapping[str, object], defaults: api.MeshConfig) -> api.MeshConfig:
    merged = overlay(defaults, spec, data)
    proxy = data.get("defaultConfig", data.get("default_config"))
    if spec.default_config is not None and isinstance(proxy, Mapping):
        merged.default_config = overlay(defaults.default_config or default_proxy(), spec.default_config, proxy)
    providers = data.get("defaultProviders", data.get("default_providers"))
    if spec.default_providers is not None and isinstance(providers, Mapping):
        under = defaults.default_providers or api.MeshConfigDefaultProviders()
        merged.default_providers = overlay(under, spec.default_providers, providers)
    named = {provider.name: provider for provider in defaults.extension_providers}
    given = {provider.name: provider for provider in spec.extension_providers}
    merged.extension_providers = [given.get(name, provider) for name, provider in named.items()]
    merged.extension_providers += [provider for provider in spec.extension_providers if provider.name not in named]
    merged.trust_domain_aliases = sorted(set(spec.trust_domain_aliases))
    return merged


def _with_usable_log_format(mesh: api.MeshConfig) -> Iterator[Problem]:
    """Remove a JSON access log format that is not a JSON object, with a warning: the default applies, as in Istio."""
    if mesh.access_log_encoding != api.MeshConfigAccessLogEncoding.JSON or not mesh.access_log_format:
        return
    if reason := log_format_reason(mesh.access_log_format):
        mesh.access_log_format = ""
        yield warning("accessLogFormat", f"{reason}; with accessLogEncoding JSON it must be, and the default is used")


def log_format_reason(text: str) -> str:
    """The reason why a string is not a JSON log format (an object with strings, or objects and lists of strings), or
    empty."""
    try:
        scalars.read_struct(json.loads(text))
    except (ValueError, RecursionError) as error:
        return f"is not a JSON object ({error})"
    return ""


def overlay(under: M, over: M, data: Mapping[str, object]) -> M:
    """``under`` with the fields that ``data`` names taken from ``over``; members of a oneof replace each other."""
    shape = descriptor_of(type(under))
    values = {field.python_name: getattr(under, field.python_name) for field in shape.fields}
    for name, value in data.items():
        field = shape.by_name.get(name)
        if field is None or value is None:
            continue
        for other in shape.fields:
            if field.group is not None and other.group == field.group:
                values[other.python_name] = None
        values[field.python_name] = getattr(over, field.python_name)
    return type(under)(**values)


def default_mesh(root_namespace: str = ROOT_NAMESPACE) -> api.MeshConfig:
    """A new MeshConfig with every default."""
    return api.MeshConfig(
        proxy_listen_port=15001,
        proxy_inbound_listen_port=15006,
        connect_timeout=timedelta(seconds=10),
        protocol_detection_timeout=timedelta(0),
        ingress_class="istio",
        ingress_service="istio-ingressgateway",
        ingress_controller_mode=api.MeshConfigIngressControllerMode.STRICT,
        enable_tracing=True,
        trust_domain="cluster.local",
        root_namespace=root_namespace,
        enable_auto_mtls=True,
        outbound_traffic_policy=api.MeshConfigOutboundTrafficPolicy(
            mode=api.MeshConfigOutboundTrafficPolicyMode.ALLOW_ANY
        ),
        locality_lb_setting=LocalityLoadBalancerSetting(enabled=True),
        default_service_export_to=["*"],
        default_virtual_service_export_to=["*"],
        default_destination_rule_export_to=["*"],
        dns_refresh_rate=timedelta(seconds=60),
        enable_prometheus_merge=True,
        default_providers=api.MeshConfigDefaultProviders(),
        extension_providers=[
            _Provider(name="prometheus", prometheus=api.MeshConfigExtensionProviderPrometheusMetricsProvider()),
            _Provider(name="stackdriver", stackdriver=api.MeshConfigExtensionProviderStackdriverProvider()),
            _Provider(
                name="envoy",
                envoy_file_access_log=api.MeshConfigExtensionProviderEnvoyFileAccessLogProvider(path="/dev/stdout"),
            ),
        ],
        default_config=default_proxy(),
    )


def default_proxy() -> api.ProxyConfig:
    """A new ProxyConfig with every default, under `defaultConfig`."""
    return api.ProxyConfig(
        config_path="./etc/istio/proxy",
        binary_path="/usr/local/bin/envoy",
        service_cluster="istio-proxy",
        drain_duration=timedelta(seconds=45),
        termination_drain_duration=timedelta(seconds=5),
        discovery_address="istiod.istio-system.svc:15012",
        proxy_admin_port=15000,
        control_plane_auth_policy=api.AuthenticationPolicy.MUTUAL_TLS,
        stat_name_length=189,
        concurrency=2,
        tracing=api.Tracing(zipkin=api.TracingZipkin(address="zipkin.istio-system:9411")),
        status_port=15020,
    )
