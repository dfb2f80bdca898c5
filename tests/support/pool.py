"""Generated items of a small family in which everything refers to everything: hosts, names, labels and addresses come
from a few, so that objects meet, hide and replace each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from mesh_pilot.api.istio.extensions.v1alpha1 import WasmConfig
from mesh_pilot.istio.meaning.wasm import wasm_of
from mesh_pilot.istio.reading.mesh import decode_mesh, decode_networks
from mesh_pilot.model.config import Origin
from mesh_pilot.model.events import (
    ExtensionInForce,
    Grant,
    Item,
    KeySet,
    MeshConfigValue,
    MeshNetworksValue,
    Secret,
    WasmModule,
)
from mesh_pilot.model.modules import ModuleRef
from tests.support import gateway_objects, legacy
from tests.support.worlds import SOURCE, configs, plain

ENTRY = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec:
  hosts: [{host}]
  addresses: [{vip}]
  location: {location}
  resolution: {resolution}
  ports:
  - {{number: {port}, name: {port_name}, protocol: {protocol}}}
  endpoints:
  - {{address: 10.1.1.{last}, labels: {{app: {name}, version: v1}}, serviceAccount: {name}}}
  - {{address: 10.1.2.{last}, labels: {{app: {name}, version: v2, security.istio.io/tlsMode: istio}}, weight: {weight}}}
"""
ROUTES = """
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec:
  hosts: ["{host}"]
  gateways: [mesh, shop/edge]
  http:
  - match: [{{uri: {{prefix: /a}}, sourceLabels: {labels}}}]
    route: [{{destination: {{host: {to}, subset: v1}}}}]
    timeout: {timeout}s
  - route:
    - {{destination: {{host: a.shop.svc.cluster.local}}, weight: {weight}}}
    - {{destination: {{host: b.shop.svc.cluster.local}}, weight: {rest}}}
"""
RULE = """
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec:
  host: "{host}"
  trafficPolicy: {{loadBalancer: {{simple: {balancer}}}, outlierDetection: {{consecutive5xxErrors: {errors}}}}}
  subsets: [{{name: v1, labels: {{version: v1}}}}]
"""
SCOPE = """
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  {selector}
  ingress: [{ingress}]
  egress: [{{hosts: ["{hosts}"]}}]
  {policy}
"""
GATEWAY = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: edge, namespace: shop}}
spec:
  selector: {{app: edge}}
  servers: [{{port: {{number: {port}, name: http, protocol: HTTP}}, hosts: ["{host}"]}}]
"""
POLICY = """
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: {name}, namespace: {namespace}, annotations: {annotations}}}
spec:
  selector: {selector}
  action: {action}
  rules: [{{from: [{{source: {{namespaces: [{source}]}}}}], to: [{{operation: {operation}}}]}}]
"""
TOKENS = """
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{selector: {selector}, jwtRules: [{{issuer: {issuer}, jwksUri: "https://a.example.com/{issuer}"}}]}}
"""
SELECTED = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec:
  hosts: [{host}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: {port_name}, protocol: {protocol}}}]
  workloadSelector: {{labels: {labels}}}
  exportTo: ["{export}"]
"""
WORKLOAD = """
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{address: {address}, labels: {labels}, serviceAccount: {account}, network: "{network}", weight: {weight}}}
"""
GROUP = """
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  metadata: {{labels: {labels}}}
  template: {{serviceAccount: {account}, ports: {{http: 8080}}, network: "{network}"}}
"""
PROXY_CONFIG = """
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{selector: {selector}, concurrency: {concurrency}, environmentVariables: {{A: "1"}}}}
"""
L4 = """
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec:
  hosts: ["{host}"]
  gateways: {gateways}
  {kind}:
  - match: [{match}]
    route:
    - {{destination: {{host: a.shop.svc.cluster.local}}, weight: {weight}}}
    - {{destination: {{host: {to}, subset: v1}}, weight: {rest}}}
"""
SECURE_GATEWAY = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: shop}}
spec:
  selector: {{app: edge}}
  servers: [{{port: {{number: {port}, name: tls, protocol: {protocol}}}, hosts: ["{host}"], tls: {tls}}}]
"""
MUTUAL = """
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec: {spec}
"""
TELEMETRY = """
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec: {spec}
"""
PLUGIN = """
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec: {spec}
"""
EXTENSION = PLUGIN.replace("WasmPlugin", "TrafficExtension")
LIMIT = """
apiVersion: policy.mesh-pilot.io/v1alpha1
kind: LocalRateLimit
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec: {spec}
"""
SHARED_LIMIT = LIMIT.replace("LocalRateLimit", "GlobalRateLimit")
CHECK = """
apiVersion: policy.mesh-pilot.io/v1alpha1
kind: HealthCheck
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec: {{host: {host}, exportTo: {export_to}, ports: {ports}, interval: {interval}s, {check}: {how}}}
"""
PATCH = """
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec: {{{selector}priority: {priority}, configPatches: [{patch}]}}
"""
PATCHES = (
    "{applyTo: CLUSTER, match: {context: %s}, patch: {operation: MERGE, value: {connect_timeout: 7s}}}",
    "{applyTo: CLUSTER, match: {context: %s, cluster: {service: a.shop.svc.cluster.local}},"
    " patch: {operation: REMOVE}}",
    "{applyTo: CLUSTER, match: {context: %s}, patch: {operation: ADD, value: {name: own, type: STATIC}}}",
    "{applyTo: LISTENER, match: {context: %s},"
    " patch: {operation: MERGE, value: {continue_on_listener_filters_timeout: true}}}",
    "{applyTo: VIRTUAL_HOST, match: {context: %s},"
    " patch: {operation: MERGE, value: {include_request_attempt_count: false}}}",
    "{applyTo: HTTP_ROUTE, match: {context: %s, routeConfiguration: {vhost: {route: {action: ROUTE}}}},"
    " patch: {operation: MERGE, value: {route: {idle_timeout: 3s}}}}",
    "{applyTo: HTTP_FILTER,"
    " match: {context: %s, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}},"
    " patch: {operation: INSERT_FIRST, value:"
    " {name: own, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}}}}",
)
MESHES = (
    "{}",
    "{outboundTrafficPolicy: {mode: REGISTRY_ONLY}, connectTimeout: 3s}",
    "{outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS, tls: {mode: SIMPLE}}}",
    "{serviceEntryVisibility: {applyToSidecars: true, defaultVisibility: NAMESPACE}}",
    "{enableAutoMtls: false, defaultServiceExportTo: ['.'], accessLogFile: /dev/stdout}",
    "{defaultVirtualServiceExportTo: ['.'], defaultDestinationRuleExportTo: ['.'], rootNamespace: shop}",
    "{trustDomain: other.local, trustDomainAliases: [cluster.local], enablePrometheusMerge: false}",
    "{extensionProviders: [{name: words, envoyFileAccessLog: {path: /dev/stderr}}], pathNormalization:"
    " {normalization: MERGE_SLASHES}, localityLbSetting: {enabled: false}}",
)
NETWORKS = (
    "{networks: {}}",
    "{networks: {far: {endpoints: [{fromCidr: 10.1.2.0/24}], gateways: [{address: 198.51.100.10, port: 15443}]}}}",
    "{networks: {far: {endpoints: [{fromRegistry: test}], gateways: [{address: 198.51.100.20, port: 15443}]}}}",
)

HOSTS = ("a.shop.svc.cluster.local", "b.shop.svc.cluster.local", "c.example.com", "*.example.com")
NAMESPACES = ("shop", "other")
ROOT = "istio-system"
LABELS = ("{app: web}", "{tier: front}", "{app: api}")
SECRETS = ("one", "two-cacert")

Pick = Callable[..., Any]


def _common(pick: Pick) -> dict[str, Any]:
    return {"namespace": pick(*NAMESPACES), "day": pick(1, 2), "name": pick("x", "y")}


def _everywhere(pick: Pick) -> dict[str, Any]:
    """Of an object that may stand in the root namespace too."""
    return _common(pick) | {"namespace": pick(ROOT, *NAMESPACES)}


def _selector(pick: Pick) -> str:
    return str(pick("", *(f"selector: {{matchLabels: {labels}}}, " for labels in LABELS)))


def _entry(pick: Pick) -> str:
    return ENTRY.format(
        **_common(pick),
        host=pick(*HOSTS[:3]),
        vip=pick("10.9.0.1", "10.9.0.2", ""),
        location=pick("MESH_INTERNAL", "MESH_EXTERNAL"),
        resolution=pick("STATIC", "DNS"),
        port=pick(80, 81),
        port_name=pick("http", "tcp"),
        protocol=pick("HTTP", "TCP", "GRPC", "TLS"),
        last=pick(1, 2),
        weight=pick(1, 5),
    )


def _selected(pick: Pick) -> str:
    return SELECTED.format(
        **_common(pick),
        host=pick(*HOSTS[:3]),
        port_name=pick("http", "tcp"),
        protocol=pick("HTTP", "TCP"),
        labels=pick(*LABELS),
        export=pick("*", "."),
    )


def _workload(pick: Pick) -> str:
    return WORKLOAD.format(
        name=pick("x", "y", "z"),
        namespace=pick(*NAMESPACES),
        address=pick("10.1.1.1", "10.1.2.2", "10.1.7.1"),
        labels=pick(*LABELS),
        account=pick("x", "y"),
        network=pick("", "far"),
        weight=pick(0, 3),
    )


def _group(pick: Pick) -> str:
    return GROUP.format(
        name=pick("x", "y"),
        namespace=pick(*NAMESPACES),
        labels=pick(*LABELS),
        account=pick("x", "y"),
        network=pick("", "far"),
    )


def _routes(pick: Pick) -> str:
    weight = pick(10, 50)
    return ROUTES.format(
        **_common(pick),
        host=pick(*HOSTS),
        to=pick(*HOSTS[:3]),
        labels=pick("{}", "{app: web}", "{tier: front}"),
        timeout=pick(1, 2),
        weight=weight,
        rest=100 - weight,
    )


def _l4(pick: Pick) -> str:
    weight, host = pick(10, 50), pick(*HOSTS)
    match pick("tls", "tcp"):
        case "tls":
            kind, match = "tls", f"{{port: {pick(80, 443)}, sniHosts: ['{host}']}}"
        case _:
            kind, match = (
                "tcp",
                pick("{port: 80}", "{port: 81, sourceLabels: {app: web}}", "{destinationSubnets: [10.9.0.0/24]}"),
            )
    return L4.format(
        **_common(pick),
        host=host,
        gateways=pick("[mesh]", "[mesh, shop/edge]", "[shop/secure]"),
        kind=kind,
        match=match,
        to=pick(*HOSTS[:3]),
        weight=weight,
        rest=100 - weight,
    )


def _rule(pick: Pick) -> str:
    return RULE.format(**_common(pick), host=pick(*HOSTS), balancer=pick("RANDOM", "ROUND_ROBIN"), errors=pick(3, 7))


def _scope(pick: Pick) -> str:
    common = _everywhere(pick)
    # A Sidecar of the root namespace selects nothing, and only one with a selector has ingress.
    selected = common["namespace"] != ROOT and pick(True, True, False)
    ingress = ("", "{port: {number: 80, name: http, protocol: HTTP}, defaultEndpoint: '127.0.0.1:8080'}",
        "{port: {number: 7000, name: tcp, protocol: TCP}, defaultEndpoint: '0.0.0.0:7777'}")  # fmt: skip
    return SCOPE.format(
        name=common["name"],
        namespace=common["namespace"],
        selector=pick(*(f"workloadSelector: {{labels: {labels}}}" for labels in LABELS)) if selected else "",
        ingress=pick(*ingress) if selected else "",
        hosts=pick("./*", "*/*", "shop/a.shop.svc.cluster.local"),
        policy=pick("", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"),
    )


def _gateway(pick: Pick) -> str:
    return GATEWAY.format(port=pick(80, 8080), host=pick("*", "*/c.example.com", "a.shop.svc.cluster.local"))


def _secure_gateway(pick: Pick) -> str:
    protocol, tls = pick(
        ("HTTPS", "{mode: SIMPLE, credentialName: one}"),
        ("HTTPS", "{mode: MUTUAL, credentialName: two}"),
        ("TLS", "{mode: PASSTHROUGH}"),
        ("TLS", "{mode: ISTIO_MUTUAL}"),
        ("TLS", "{mode: AUTO_PASSTHROUGH}"),
    )
    return SECURE_GATEWAY.format(
        name=pick("edge", "secure"), port=pick(443, 8080), protocol=protocol, tls=tls, host=pick("*", *HOSTS)
    )


def _proxy_config(pick: Pick) -> str:
    return PROXY_CONFIG.format(
        name=pick("x", "y"),
        namespace=pick(ROOT, *NAMESPACES),
        selector=pick("{matchLabels: {app: web}}", "{}"),
        concurrency=pick(0, 2),
    )


def _policy(pick: Pick) -> str:
    action = pick("ALLOW", "DENY", "AUDIT")
    tried = '{istio.io/dry-run: "true"}'
    return POLICY.format(
        name=pick("x", "y"),
        namespace=pick(ROOT, *NAMESPACES),
        annotations="{}" if action == "AUDIT" else pick(tried, "{}", "{}"),
        selector=pick("{matchLabels: {app: web}}", "{matchLabels: {tier: front}}", "{}"),
        action=action,
        source=pick("shop", "other"),
        operation=pick("{paths: [/a]}", "{ports: ['80']}"),
    )


def _tokens(pick: Pick) -> str:
    return TOKENS.format(
        name=pick("x", "y"),
        namespace=pick(ROOT, *NAMESPACES),
        selector=pick("{matchLabels: {app: web}}", "{}"),
        issuer=pick("one", "two"),
    )


def _mutual(pick: Pick) -> str:
    common = _everywhere(pick)
    # In the root namespace a policy with a selector would be for that namespace's own workloads.
    selector = _selector(pick)
    ports = f", portLevelMtls: {{80: {{mode: {pick('DISABLE', 'STRICT')}}}}}" if selector and pick(True, False) else ""
    mode = pick("STRICT", "PERMISSIVE", "DISABLE", "UNSET")
    return MUTUAL.format(**common, spec=f"{{{selector}mtls: {{mode: {mode}}}{ports}}}")


def _legacy_methods(pick: Pick) -> str:
    peers = pick("peers: [{mtls: {}}]", "peers: [{mtls: {mode: PERMISSIVE}}]", "")
    keys = "https://a.example.com/one"
    tokens = pick("", f"origins: [{{jwt: {{issuer: one, jwksUri: '{keys}'}}}}]")
    return ", ".join(filter(None, (peers, tokens, f"originIsOptional: {pick('true', 'false')}")))


def _legacy_policy(pick: Pick) -> str:
    name, namespace = pick("default", "x", "y"), pick(*NAMESPACES)
    targets = (
        "" if name == "default" else f"targets: [{{name: {pick('a', 'b')}{pick('', ', ports: [{number: 80}]')}}}], "
    )
    return legacy.policy(name, targets + _legacy_methods(pick), namespace=namespace)


def _legacy_role(pick: Pick) -> str:
    services = pick("['*']", "[a]", f"[{HOSTS[0]}]")
    paths = pick("", ", paths: [/a]")
    labels = pick("", ", constraints: [{key: 'destination.labels[app]', values: [web]}]")
    return legacy.role(pick("x", "y"), f"[{{services: {services}{paths}{labels}}}]", namespace=pick(*NAMESPACES))


def _legacy_binding(pick: Pick) -> str:
    subject = pick("{user: '*'}", "{namespaces: [shop]}", "{properties: {request.auth.principal: one/a}}")
    more = pick("", "mode: PERMISSIVE", "actions: [{services: ['*']}]")
    role = pick("x", "y")
    return legacy.binding(pick("x", "y"), f"[{subject}]", role=role, more=more, namespace=pick(*NAMESPACES))


def _legacy_access(pick: Pick, namespace: str = "") -> str:
    target = f"{{services: [{HOSTS[0]}], namespaces: [{pick('other', 'shop')}]}}"
    mode = pick("ON", "ON", "OFF", "ON_WITH_INCLUSION", "ON_WITH_EXCLUSION")
    enforced = pick("ENFORCED", "PERMISSIVE")
    more = f"inclusion: {target}, exclusion: {target}, enforcementMode: {enforced}"
    return legacy.access(mode, more, namespace=namespace)


def _telemetry(pick: Pick) -> str:
    parts = (
        "accessLogging: [{disabled: true}]",
        "accessLogging: [{match: {mode: CLIENT}, providers: [{name: words}]}]",
        "accessLogging: [{providers: [{name: words}], filter: {expression: 'response.code >= 400'}}]",
        "tracing: [{randomSamplingPercentage: 50}]",
        "tracing: [{disableSpanReporting: true}]",
    )
    return TELEMETRY.format(**_everywhere(pick), spec=f"{{{_selector(pick)}{pick(*parts)}}}")


def _extension_settings(pick: Pick) -> str:
    matches = (
        "",
        "match: [{mode: CLIENT}], ",
        "match: [{mode: SERVER, ports: [{number: 80}]}, {ports: [{number: 81}]}], ",
    )
    order = pick("", "phase: AUTHN, ", "phase: AUTHZ, priority: 5, ", "phase: STATS, priority: -1, ")
    return f"{_selector(pick)}{pick(*matches)}{order}"


def _module_url(pick: Pick) -> str:
    return str(pick("oci://hub.test/one:v1", "https://modules.test/two.wasm"))


def _wasm(pick: Pick) -> str:
    strategy, kind = pick("FAIL_OPEN", "FAIL_CLOSE"), pick("HTTP", "NETWORK")
    return f"url: '{_module_url(pick)}', type: {kind}, failStrategy: {strategy}"


def _plugin(pick: Pick) -> str:
    return PLUGIN.format(**_everywhere(pick), spec=f"{{{_extension_settings(pick)}{_wasm(pick)}}}")


def _extension(pick: Pick) -> str:
    part = pick("lua: {inlineCode: '-- nothing'}", f"wasm: {{{_wasm(pick)}}}")
    return EXTENSION.format(**_everywhere(pick), spec=f"{{{_extension_settings(pick)}{part}}}")


def _module(pick: Pick) -> WasmModule:
    return WasmModule(ModuleRef(_module_url(pick)), sha256=pick("", "1", "2"), trouble=pick("", "away"))


def _extension_in_force(pick: Pick) -> ExtensionInForce:
    (config,) = configs(_plugin(pick))
    return ExtensionInForce(config.key, bytes(wasm_of(config.spec) or WasmConfig()), _module(pick))


def _limit(pick: Pick) -> str:
    port, count = pick("", "port: 80, "), pick(1, 2)
    match = pick("", "match: {uri: {prefix: /a}}, ")
    parts = (
        f"http: {{limits: [{{{port}{match}rate: {{count: {count}}}}}]}}",
        f"connections: [{{{port}rate: {{count: {count}}}}}]",
    )
    return LIMIT.format(**_everywhere(pick), spec=f"{{{_selector(pick)}{pick(*parts, ', '.join(parts))}}}")


def _shared_limit(pick: Pick) -> str:
    port, match = pick("", "port: 80, "), pick("", "match: {uri: {prefix: /a}}, ")
    entry = pick("{key: plan, value: free}", "{key: plan, value: paid}")
    server = f"service: {{host: {pick(*HOSTS[:3])}, port: {pick(80, 81)}}}, domain: shop"
    spec = f"{{{_selector(pick)}{server}, descriptors: [{{{port}{match}entries: [{entry}]}}]}}"
    return SHARED_LIMIT.format(**_everywhere(pick), spec=spec)


def _check(pick: Pick) -> str:
    check, how = pick(("http", "{path: /}"), ("grpc", "{}"), ("tcp", "{}"))
    export_to, ports = pick("[]", "[.]", "[shop]"), pick("[]", "[80]")
    host, interval = pick(*HOSTS[:3]), pick(1, 2)
    return CHECK.format(
        **_everywhere(pick), host=host, export_to=export_to, ports=ports, interval=interval, check=check, how=how
    )


def _patch(pick: Pick) -> str:
    selector = pick("", *(f"workloadSelector: {{labels: {labels}}}, " for labels in LABELS))
    context = pick("ANY", "SIDECAR_OUTBOUND", "SIDECAR_INBOUND", "GATEWAY")
    return PATCH.format(**_everywhere(pick), selector=selector, priority=pick(-1, 0), patch=pick(*PATCHES) % context)


def _mesh(pick: Pick) -> MeshConfigValue:
    return MeshConfigValue(decode_mesh(plain(pick(*MESHES)), origin=Origin(SOURCE, "mesh.yaml")))


def _networks(pick: Pick) -> MeshNetworksValue:
    return MeshNetworksValue(decode_networks(plain(pick(*NETWORKS)), origin=Origin(SOURCE, "networks.yaml")))


def _secret(pick: Pick) -> Secret:
    pair = {"certificate_chain": pick(b"chain 1", b"chain 2"), "private_key": b"key"}
    authorities = {"ca_certificates": pick(b"roots 1", b"roots 2"), "crl": pick(b"", b"revoked")}
    grants = {"grants": pick((), (Grant("shop"),), (Grant("shop", "default"), Grant("other")))}
    parts = pick(pair, authorities, pair | authorities)
    return Secret(pick("one", "two", "two-cacert"), pick("", "shop"), **parts, **grants)


def _keys(pick: Pick) -> KeySet:
    return KeySet(
        "", f"https://a.example.com/{pick('one', 'two')}", pick("", '{"keys": []}', '{"keys": [{"kty": "RSA"}]}')
    )


KINDS: dict[str, Callable[[Pick], Any]] = {
    "entry": _entry,
    "selected entry": _selected,
    "workload": _workload,
    "group": _group,
    "routes": _routes,
    "routes of layer 4": _l4,
    "rule": _rule,
    "scope": _scope,
    "gateway": _gateway,
    "gateway with TLS": _secure_gateway,
    "policy": _policy,
    "tokens": _tokens,
    "mutual TLS": _mutual,
    "legacy policy": _legacy_policy,
    "legacy policy of the mesh": lambda pick: legacy.mesh_policy(_legacy_methods(pick)),
    "legacy role": _legacy_role,
    "legacy binding": _legacy_binding,
    "legacy access": _legacy_access,
    "legacy access of the root": lambda pick: _legacy_access(pick, ROOT),
    "telemetry": _telemetry,
    "proxy config": _proxy_config,
    "plugin": _plugin,
    "extension": _extension,
    "module": _module,
    "extension in force": _extension_in_force,
    "patch": _patch,
    "rate limit": _limit,
    "shared rate limit": _shared_limit,
    "health check": _check,
    "mesh": _mesh,
    "networks": _networks,
    "secret": _secret,
    "key set": _keys,
    **gateway_objects.KINDS,
}
THEMES = (
    tuple(KINDS),
    ("routes", "rule", "gateway"),
    ("tokens", "key set", "policy"),
    ("gateway with TLS", "secret", "routes of layer 4"),
    ("workload", "group", "selected entry", "networks"),
    ("patch", "routes", "gateway", "scope"),
    ("plugin", "extension", "module", "extension in force", "gateway"),
    ("mutual TLS", "mesh", "rule", "telemetry"),
    ("legacy policy", "legacy policy of the mesh", "mutual TLS", "tokens", "key set"),
    ("Gateway", "ListenerSet", "HTTPRoute", "HTTPRoute", "grant", "namespace", "class of Gateways", "TLSRoute"),
    ("entry", "entry", "HTTPRoute", "HTTPRoute", "routes", "scope"),
    ("Ingress", "class of Ingresses", "HTTPRoute", "Gateway", "TLS policy", "traffic policy", "rule"),
    ("health check", "rule", "mesh", "scope"),
    ("rate limit", "policy", "gateway", "scope"),
    ("legacy role", "legacy binding", "legacy access", "legacy policy", "scope"),
)
"""Kinds that act on each other: alone together, their objects meet more often than if all came."""

OFTEN = ("entry", "entry", "routes", "routes", "workload", "selected entry")
"""What the others refer to comes more than once."""


@st.composite
def items(draw: st.DrawFn, kinds: tuple[str, ...] = (*KINDS, *OFTEN)) -> Item:
    """One item of the family, of any of these kinds."""

    def pick(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    made = KINDS[pick(*kinds)](pick)
    if not isinstance(made, str):
        return made  # type: ignore[no-any-return]
    (config,) = configs(made)
    return config
