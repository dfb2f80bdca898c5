"""Rules for MeshConfig, once it is merged over the defaults. Paths start at its root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_address
from urllib.parse import urlsplit

from cryptography import x509

from mesh_pilot.api.istio.mesh import v1alpha1 as api
from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigCertificateData
from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigOutboundTrafficPolicyMode as OutboundMode
from mesh_pilot.api.istio.networking.v1alpha3 import HttpRetry, OutlierDetection
from mesh_pilot.api.istio.networking.v1beta1 import ProxyConfig as ProxyConfigObject
from mesh_pilot.istio.meaning.descriptors import camel_case
from mesh_pilot.istio.rules.common import check_match_labels
from mesh_pilot.istio.rules.context import Context, check, check_parts, check_values, error, warning
from mesh_pilot.istio.rules.destination_rule import check_connection_pool, check_outliers
from mesh_pilot.istio.rules.extension_providers import check_mesh_log
from mesh_pilot.istio.rules.http_policies import check_retries
from mesh_pilot.istio.rules.load_balancing import check_locality, check_zone_aware
from mesh_pilot.istio.rules.names import (
    address_and_port_reason,
    dns_label_reason,
    empty_reason,
    fqdn_or_ip_reason,
    fqdn_reason,
    is_dns_label,
    label_key_reason,
    negative_reason,
    port_reason,
    subnet_reason,
    trust_domain_reason,
    wildcard_host_reason,
)
from mesh_pilot.istio.rules.telemetry import check_custom_tags
from mesh_pilot.istio.rules.tls import CIPHERS, check_client_tls, check_curves
from mesh_pilot.istio.rules.values import (
    MAX_DURATION,
    duration_or_zero_reason,
    duration_reason,
    header_text_reason,
    percent_reason,
)
from mesh_pilot.model.config import Problem
from mesh_pilot.model.spiffe import FORM as SPIFFE_FORM
from mesh_pilot.model.spiffe import parse_identity

MAX_CONNECT_TIMEOUT = timedelta(hours=1)
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_CLUSTER = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?")
MIN_WINDOW, MAX_HTTP2 = 2**16 - 1, 2**31 - 1
"""Envoy's limits of HTTP/2 windows in bytes; the latter is its limit of streams, too."""


def validate_mesh(mesh: api.MeshConfig) -> Iterator[Problem]:
    """Everything that is wrong with a MeshConfig, but for its extension providers."""
    yield from _check_ports(mesh)
    yield from _check_timeouts(mesh)
    yield from _check_names(mesh)
    yield from check_locality("localityLbSetting", mesh.locality_lb_setting, OutlierDetection())
    yield from check_zone_aware("zoneAwareLbSetting", mesh.zone_aware_lb_setting, OutlierDetection())
    outbound = mesh.outbound_traffic_policy
    if outbound is not None and outbound.tls is not None:
        yield from check_parts("outboundTrafficPolicy", outbound, check_client_tls, "tls")
        if outbound.mode != OutboundMode.ALLOW_ANY_DYNAMIC_DNS:
            yield warning("outboundTrafficPolicy.tls", "has no effect: it is for mode ALLOW_ANY_DYNAMIC_DNS")
    yield from check_parts("", mesh, check_retries, "default_http_retry_policy", "default_inbound_http_retry_policy")
    yield from check_parts("", mesh, _check_inbound_retries, "default_inbound_http_retry_policy")
    for index, settings in enumerate(mesh.service_settings):
        yield from check_values(f"serviceSettings[{index}]", settings, wildcard_host_reason, "hosts")
    yield from check_parts("", mesh, _check_label_selector, "discovery_selectors")
    yield from check_parts("", mesh, _check_visibility, "service_entry_visibility")
    yield from check_mesh_log(mesh)
    yield from _check_tls(mesh)
    yield from check_parts("", mesh, check_ca_certificates, "ca_certificates")
    if mesh.default_traffic_policy is not None:
        policy = mesh.default_traffic_policy
        yield from check_parts("defaultTrafficPolicy", policy, check_connection_pool, "connection_pool")
        yield from check_parts("defaultTrafficPolicy", policy, check_outliers, "outlier_detection")
    yield from check_parts("", mesh, check_proxy_config, "default_config")
    yield from check_parts("", mesh, _check_acme, "acme")


def _check_inbound_retries(path: str, retries: HttpRetry) -> Iterator[Problem]:
    for name in ("per_try_timeout", "retry_remote_localities", "retry_ignore_previous_hosts"):
        if getattr(retries, name) is not None:
            yield warning(f"{path}.{camel_case(name)}", "has no effect: a sidecar has one application")


def _check_acme(path: str, acme: api.AcmeIssuer) -> Iterator[Problem]:
    if not acme.directory.startswith("https://"):
        yield error(f"{path}.directory", f'"{acme.directory}" is not the https:// URL of a directory')
    if not acme.terms_of_service_agreed:
        yield error(f"{path}.termsOfServiceAgreed", "must be true: no issuer signs for who does not agree to its terms")
    yield from check_values(path, acme, _contact_reason, "contacts")
    names = [each.name for each in acme.credentials]
    for index, each in enumerate(acme.credentials):
        at = f"{path}.credentials[{index}]"
        namespace, slash, name = each.name.rpartition("/")
        if fqdn_reason(name) or (slash and not is_dns_label(namespace)):
            yield error(f"{at}.name", f'"{each.name}" is not NAMESPACE/NAME, or NAME for one of the root namespace')
        if each.name in names[:index]:
            yield error(f"{at}.name", f'"{each.name}" is there twice')
        yield from check_values(at, each, _provable_reason, "hosts")


def _contact_reason(contact: str) -> str:
    if contact.startswith("mailto:") and "@" in contact and "?" not in contact and "," not in contact:
        return ""
    return f'"{contact}" is not of the form mailto:ops@example.com'


def _provable_reason(host: str) -> str:
    if "*" in host:
        return f'"{host}" is a wildcard, which http-01 cannot prove: list names'
    return fqdn_reason(host)


def _check_ports(mesh: api.MeshConfig) -> Iterator[Problem]:
    yield from check("proxyListenPort", port_reason(mesh.proxy_listen_port))
    yield from check("proxyInboundListenPort", port_reason(mesh.proxy_inbound_listen_port))
    if mesh.proxy_http_port:
        yield from check("proxyHttpPort", port_reason(mesh.proxy_http_port))
    if mesh.proxy_listen_port == mesh.proxy_inbound_listen_port:
        yield error("proxyInboundListenPort", f"{mesh.proxy_listen_port} is proxyListenPort already")


def _check_timeouts(mesh: api.MeshConfig) -> Iterator[Problem]:
    if mesh.connect_timeout is not None:
        reason = duration_reason(mesh.connect_timeout)
        if not reason and mesh.connect_timeout > MAX_CONNECT_TIMEOUT:
            reason = "must be at most 1h"
        yield from check("connectTimeout", reason)
    yield from check_values("", mesh, duration_or_zero_reason, "protocol_detection_timeout")
    for name, value in (("dnsRefreshRate", mesh.dns_refresh_rate), ("hboneIdleTimeout", mesh.hbone_idle_timeout)):
        if value is not None:
            yield from check(name, duration_reason(value))


def _check_names(mesh: api.MeshConfig) -> Iterator[Problem]:
    yield from check("trustDomain", trust_domain_reason(mesh.trust_domain))
    if mesh.trust_domain.endswith("."):  # istiod takes it
        yield warning(
            "trustDomain", "no SPIFFE name has a trust domain that ends in a dot: no certificate can be issued"
        )
    yield from check_values("", mesh, trust_domain_reason, "trust_domain_aliases")
    yield from check_values("", mesh, _identity_reason, "config_readers", "config_writers")
    yield from check("rootNamespace", dns_label_reason(mesh.root_namespace))
    lists = (f"default_{kind}_export_to" for kind in ("service", "virtual_service", "destination_rule"))
    yield from check_values("", mesh, _export_reason, *lists)
    for host, namespace in mesh.host_owners.items():
        yield from check(f"hostOwners[{host}]", wildcard_host_reason(host))
        yield from check(f"hostOwners[{host}]", dns_label_reason(namespace))


def _identity_reason(identity: str) -> str:
    return f'"{identity}" is not of the form {SPIFFE_FORM}' if parse_identity(identity) is None else ""


def _export_reason(entry: str) -> str:
    if entry in ("*", ".", "~") or is_dns_label(entry):
        return ""
    return f'"{entry}" is not a namespace; allowed are "*", "." and names of namespaces'


def _check_visibility(path: str, policy: api.ServiceEntryVisibility) -> Iterator[Problem]:
    if not policy.apply_to_sidecars:
        yield warning(path, "has no effect without applyToSidecars: ambient mode is absent")
    for index, each in enumerate(policy.policies):
        for number, rule in enumerate(each.matching_rules):
            here = f"{path}.policies[{index}].matchingRules[{number}]"
            if rule.namespace_selector is None:
                yield warning(here, "matches nothing: it has no namespaceSelector")
            else:
                yield from _check_label_selector(f"{here}.namespaceSelector", rule.namespace_selector)


def _check_label_selector(path: str, selector: api.LabelSelector) -> Iterator[Problem]:
    for key in selector.match_labels:
        yield from check(f"{path}.matchLabels[{key}]", label_key_reason(key))
    for index, requirement in enumerate(selector.match_expressions):
        here = f"{path}.matchExpressions[{index}]"
        yield from check(f"{here}.key", label_key_reason(requirement.key) if requirement.key else "is missing")
        if requirement.operator not in OPERATORS:
            yield error(f"{here}.operator", f'"{requirement.operator}" is not one of {", ".join(OPERATORS)}')
        elif requirement.operator in ("In", "NotIn") and not requirement.values:
            yield error(f"{here}.values", f"is missing: {requirement.operator} needs at least one")
        elif requirement.operator in ("Exists", "DoesNotExist") and requirement.values:
            yield error(f"{here}.values", f"can't be set with {requirement.operator}")


def _check_tls(mesh: api.MeshConfig) -> Iterator[Problem]:
    if mesh.mesh_mTLS is not None and mesh.mesh_mTLS.ecdh_curves:
        yield error("meshMTLS.ecdhCurves", "can't be set for mesh mTLS; use tlsDefaults")
    for name, config in (("meshMTLS", mesh.mesh_mTLS), ("tlsDefaults", mesh.tls_defaults)):
        for index, cipher in enumerate(config.cipher_suites if config is not None else ()):
            if cipher not in CIPHERS:
                yield warning(f"{name}.cipherSuites[{index}]", f'"{cipher}" is not a known cipher suite, ignored')
    if mesh.tls_defaults is not None:
        yield from check_curves("tlsDefaults", mesh.tls_defaults.ecdh_curves)


def check_proxy_config(path: str, proxy: api.ProxyConfig) -> Iterator[Problem]:
    """`defaultConfig`, or a proxy's own settings."""
    paths = ("config_path", "binary_path", "discovery_address", "service_cluster")
    yield from check_values(path, proxy, empty_reason, *paths)
    yield from check_values(path, proxy, negative_reason, "concurrency")
    yield from check_values(path, proxy, port_reason, "proxy_admin_port", "status_port")
    if proxy.drain_duration is not None:
        reason = duration_reason(proxy.drain_duration)
        if not reason and proxy.drain_duration % timedelta(seconds=1):
            reason = "must be in whole seconds"
        yield from check(f"{path}.drainDuration", reason)
    services = {
        "discoveryAddress": proxy.discovery_address,
        "statsdUdpAddress": proxy.statsd_udp_address,
        "envoyMetricsServiceAddress": proxy.envoy_metrics_service_address,
    }
    if proxy.envoy_metrics_service is not None:
        services["envoyMetricsService.address"] = proxy.envoy_metrics_service.address
    if proxy.envoy_access_log_service is not None:
        services["envoyAccessLogService.address"] = proxy.envoy_access_log_service.address
    for name, address in services.items():
        if address:
            yield from check(f"{path}.{name}", address_and_port_reason(address))
    yield from check_parts(path, proxy, _check_tracing, "tracing")
    yield from check_parts(path, proxy, _check_connections, "connection_settings")
    server = proxy.proxy_headers.server if proxy.proxy_headers is not None else None
    if server is not None:
        yield from check(f"{path}.proxyHeaders.server.value", header_text_reason(server.value))
    yield from check_parts(path, proxy, _check_key_provider, "private_key_provider")


_TIMEOUTS = (
    "http_idle_timeout", "http_max_connection_duration", "http_max_stream_duration", "http_drain_timeout",
    "http_request_timeout", "http_request_headers_timeout", "http_stream_idle_timeout",
)  # fmt: skip


def _timeout_reason(value: timedelta) -> str:
    return "" if timedelta(0) <= value <= MAX_DURATION else f"allowed are 0s to {int(MAX_DURATION.total_seconds())}s"


def _check_connections(path: str, settings: api.ProxyConfigConnectionSettings) -> Iterator[Problem]:
    yield from check_values(path, settings, _timeout_reason, *_TIMEOUTS)
    for name, number, least in (
        ("httpMaxConcurrentStreams", settings.http_max_concurrent_streams, 1),
        ("http2InitialStreamWindowSize", settings.http2_initial_stream_window_size, MIN_WINDOW),
        ("http2InitialConnectionWindowSize", settings.http2_initial_connection_window_size, MIN_WINDOW),
    ):
        if number and not least <= number <= MAX_HTTP2:  # 0: Envoy's default
            yield error(f"{path}.{name}", f"{number} is not allowed; {least} to {MAX_HTTP2}")


def _check_tracing(path: str, tracing: api.Tracing) -> Iterator[Problem]:
    addresses = {
        "zipkin": tracing.zipkin.address if tracing.zipkin is not None else None,
        "datadog": tracing.datadog.address if tracing.datadog is not None else None,
        "lightstep": tracing.lightstep.address if tracing.lightstep is not None else None,
    }
    for name, address in addresses.items():
        if address is not None:
            reason = address_and_port_reason(address.replace("$(HOST_IP)", "127.0.0.1", 1)) if address else "is missing"
            yield from check(f"{path}.{name}.address", reason)
    if tracing.lightstep is not None and not tracing.lightstep.access_token:
        yield error(f"{path}.lightstep.accessToken", "is missing")
    yield from check(f"{path}.sampling", percent_reason(tracing.sampling))
    yield from check_custom_tags(f"{path}.customTags", tracing.custom_tags)
    yield from check_parts(path, tracing, check_client_tls, "tls_settings")


def _check_key_provider(path: str, provider: api.PrivateKeyProvider) -> Iterator[Problem]:
    chosen = {"cryptomb": provider.cryptomb, "qat": provider.qat}
    if all(value is None for value in chosen.values()):
        yield error(path, "needs cryptomb or qat")
    for name, value in chosen.items():
        if value is not None and not value.poll_delay:
            yield error(f"{path}.{name}.pollDelay", "is missing or zero")


def validate_networks(networks: api.MeshNetworks) -> Iterator[Problem]:
    """Everything that is wrong with the networks."""
    for name, network in networks.networks.items():
        path = f"networks[{name}]"
        if not name:
            yield error(path, "a network must have a name")
        yield from _check_network(path, network)


def _check_network(path: str, network: api.Network) -> Iterator[Problem]:
    for index, endpoint in enumerate(network.endpoints):
        here = f"{path}.endpoints[{index}]"
        if endpoint.from_cidr is not None:
            yield from check(f"{here}.fromCidr", subnet_reason(endpoint.from_cidr))
        elif endpoint.from_registry is not None:
            registry, slash, cluster = endpoint.from_registry.partition("/")
            reason = dns_label_reason(registry)
            if not reason and slash and not _CLUSTER.fullmatch(cluster):
                reason = f'"{endpoint.from_registry}" names no cluster of {registry} after the slash'
            yield from check(f"{here}.fromRegistry", reason)
        else:
            yield error(here, "needs fromCidr or fromRegistry")
    for index, gateway in enumerate(network.gateways):
        here = f"{path}.gateways[{index}]"
        if gateway.registry_service_name is not None:
            yield from check(f"{here}.registryServiceName", fqdn_reason(gateway.registry_service_name))
        elif gateway.address is not None:
            yield from check(f"{here}.address", fqdn_or_ip_reason(gateway.address))
        else:
            yield error(here, "needs address or registryServiceName")
        yield from check(f"{here}.port", port_reason(gateway.port))


def validate_proxy_config(spec: ProxyConfigObject, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a ProxyConfig."""
    yield from check_match_labels(spec.selector)
    yield from check_values("spec", spec, negative_reason, "concurrency")
    for name in spec.environment_variables:
        if not name or "=" in name:
            yield error(f"spec.environmentVariables[{name}]", f'"{name}" is not the name of a variable')


# -- rules for ``caCertificates`` of a MeshConfig: roots that are trusted besides those of the mesh's own CA


def check_ca_certificates(path: str, data: MeshConfigCertificateData) -> Iterator[Problem]:
    """The problems of one entry at ``path``."""
    if data.pem:
        yield from check(f"{path}.pem", pem_reason(data.pem))
    elif data.spiffe_bundle_url:
        yield from check(f"{path}.spiffeBundleUrl", bundle_url_reason(data.spiffe_bundle_url))
    else:
        yield error(path, "must have pem or spiffeBundleUrl")
    yield from check_values(path, data, trust_domain_reason, "trust_domains")


def pem_reason(pem: str) -> str:
    """The reason why a string is not PEM of CA certificates; empty if it is."""
    if "PRIVATE KEY" in pem:
        return "has a private key, which belongs in no configuration; give only certificates"
    try:
        certificates = x509.load_pem_x509_certificates(pem.encode())
        for certificate in certificates:
            if not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                return f"has a certificate ({certificate.subject.rfc4514_string()}) that is not a CA's"
    except x509.ExtensionNotFound:
        return "has a certificate that is not a CA's"
    except ValueError:
        return "is not PEM of certificates"
    return ""


def bundle_url_reason(url: str) -> str:
    """The reason why a bundle is not fetched from a URL; empty if it is. As in Istio, the scheme may be left out."""
    try:
        parts = urlsplit(full_bundle_url(url))
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as problem:
        return f"is not a URL: {problem}"
    if parts.username is not None or parts.password is not None:
        return "must not have a user or password"
    if not host:
        return "has no host"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return ""
    return "must be https: over anything else, anyone on the way could have their own root trusted"


def full_bundle_url(url: str) -> str:
    """The URL with its scheme, https by default."""
    return url if "://" in url else f"https://{url}"


def is_loopback(host: str) -> bool:
    """True for a host on this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
