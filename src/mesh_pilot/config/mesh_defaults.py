"""What holds where a mesh.yaml says nothing: the defaults built into Istio."""

from __future__ import annotations

from datetime import timedelta

from mesh_pilot.api.istio.mesh import v1alpha1 as api
from mesh_pilot.api.istio.networking.v1alpha3 import LocalityLoadBalancerSetting

_Provider = api.MeshConfigExtensionProvider


ROOT_NAMESPACE = "istio-system"
"""Whose objects hold for the whole mesh, unless the operator says otherwise."""


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
    """A new ProxyConfig with every default: what `defaultConfig` is merged over."""
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
