"""The mesh-wide settings: Istio's MeshConfig and MeshNetworks, decoded strictly, over Istio's defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypeVar

import betterproto2

from mesh_pilot.api.istio.mesh import v1alpha1 as api
from mesh_pilot.api.istio.networking.v1alpha3 import LocalityLoadBalancerSetting
from mesh_pilot.config.reader import read
from mesh_pilot.config.shapes import shape_of
from mesh_pilot.model.config import ConfigError, Origin, Problem, Severity

M = TypeVar("M", bound=betterproto2.Message)

LineOf = Callable[[str], int]


def default_mesh() -> api.MeshConfig:
    """What holds where a mesh.yaml says nothing: Istio's built-in defaults."""
    return api.MeshConfig(
        proxy_listen_port=15001,
        proxy_inbound_listen_port=15006,
        connect_timeout=timedelta(seconds=10),
        protocol_detection_timeout=timedelta(0),
        ingress_class="istio",
        ingress_controller_mode=api.MeshConfigIngressControllerMode.STRICT,
        enable_tracing=True,
        trust_domain="cluster.local",
        root_namespace="istio-system",
        enable_auto_mtls=True,
        outbound_traffic_policy=api.MeshConfigOutboundTrafficPolicy(
            mode=api.MeshConfigOutboundTrafficPolicyMode.ALLOW_ANY
        ),
        locality_lb_setting=LocalityLoadBalancerSetting(enabled=True),
        default_service_export_to=["*"],
        default_virtual_service_export_to=["*"],
        default_destination_rule_export_to=["*"],
        dns_refresh_rate=timedelta(seconds=5),
        enable_prometheus_merge=True,
        default_config=_default_proxy(),
    )


def decode_mesh(document: object, *, origin: Origin, line_of: LineOf = lambda path: 0) -> api.MeshConfig:
    """The MeshConfig of a ``mesh.yaml``: what it says over the defaults; ``defaultConfig`` is merged field by field.

    An empty document is the defaults. Raises ConfigError with every problem.
    """
    data = {} if document is None else document
    spec = _decode(api.MeshConfig, data, origin, line_of)
    defaults = default_mesh()
    merged = _overlay(defaults, spec, data)
    if isinstance(data, Mapping):
        proxy = data.get("defaultConfig", data.get("default_config"))
        if spec.default_config is not None and defaults.default_config is not None and proxy:
            merged.default_config = _overlay(defaults.default_config, spec.default_config, proxy)
    return merged


def decode_networks(document: object, *, origin: Origin, line_of: LineOf = lambda path: 0) -> api.MeshNetworks:
    """The MeshNetworks of a networks file; an empty document is no networks. Raises ConfigError."""
    return _decode(api.MeshNetworks, {} if document is None else document, origin, line_of)


def _decode(message: type[M], data: object, origin: Origin, line_of: LineOf) -> M:
    problems: list[Problem] = []
    spec = read(message, data, "", problems)
    errors = [p for p in problems if p.severity is Severity.ERROR]
    if spec is None or errors:
        found = tuple(Problem(p.path, p.reason, p.severity, line_of(p.path)) for p in problems)
        raise ConfigError(origin, None, found)
    return spec


def _overlay(under: M, over: M, data: object) -> M:
    """``under`` with every field that ``data`` names taken from ``over``."""
    assert isinstance(data, Mapping)
    shape = shape_of(type(under))
    values = {f.python_name: getattr(under, f.python_name) for f in shape.fields}
    for name, value in data.items():
        field = shape.by_name.get(str(name))
        if field is not None and value is not None:
            values[field.python_name] = getattr(over, field.python_name)
    return type(under)(**values)


def _default_proxy() -> api.ProxyConfig:
    return api.ProxyConfig(
        config_path="./etc/istio/proxy",
        drain_duration=timedelta(seconds=45),
        termination_drain_duration=timedelta(seconds=5),
        proxy_admin_port=15000,
        control_plane_auth_policy=api.AuthenticationPolicy.MUTUAL_TLS,
        concurrency=2,
        stat_name_length=189,
        status_port=15020,
    )
