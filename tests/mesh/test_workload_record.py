"""Objects select a proxy by what the registry says of its workload, whatever its node says."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.engine import Watch
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.filters.rbac.policies import policies_for
from mesh_pilot.mesh.proxy.agent_config import agent_config
from mesh_pilot.mesh.proxy.keys import ProxyKeys, proxy_facts, proxy_keys
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete, Endpoints, Upsert
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER
from mesh_pilot.model.service import Endpoint, Health, Locality, Port, Protocol, Registration, Service
from mesh_pilot.world import World
from mesh_pilot.world.service_entries import AUTO_REGISTRATION
from tests.support.manifests import manifest
from tests.support.worlds import SOURCE, sidecar, update, world_of

IP = "10.1.1.1"
HUB = manifest(
    "ServiceEntry",
    "hub",
    """
    hosts: [hub.test]
    location: MESH_INTERNAL
    resolution: STATIC
    ports: [{number: 8080, name: http, protocol: HTTP}]
    workloadSelector: {labels: {app: hub}}
    """,
)
CORE = {"app": "hub", "tier": "core"}


def entry(labels: str = "{app: hub, tier: core}", more: str = "", name: str = "hub-1") -> str:
    return manifest("WorkloadEntry", name, f"{{address: {IP}, serviceAccount: hub, labels: {labels}, {more}}}")


def deny(name: str = "core", label: str = "tier: core") -> str:
    rules = '[{to: [{operation: {paths: ["/admin*"]}}]}]'
    return manifest(
        "AuthorizationPolicy", name, f"{{selector: {{matchLabels: {{{label}}}}}, action: DENY, rules: {rules}}}"
    )


def hub(labels: dict[str, str] | None = None, **more: Any) -> Proxy:
    return sidecar(
        IP, name="hub", **{"namespace": "shop", "labels": {"app": "hub"} if labels is None else labels, **more}
    )


def keys(world: World, proxy: Proxy) -> ProxyKeys:
    return proxy_keys(world.view, proxy_facts(proxy))


def denied(world: World, proxy: Proxy) -> set[str]:
    """The names of the DENY policies of a proxy."""
    found = keys(world, proxy).workload
    return {key.name for key in policies_for(world.view, found.scope.namespace, found.labels).deny}


def sent(world: World, proxy: Proxy) -> dict[str, bytes]:
    """All clusters and listeners of a proxy, and the settings of its agent."""
    resources = WorldCatalog(world).open(proxy)
    found = {"settings": repr(keys(world, proxy).agent and agent_config(world.view, keys(world, proxy).agent)).encode()}
    for type_url in (CLUSTER, LISTENER):
        held = resources.set(type_url)
        assert held is not None
        for name in held.snapshot().entries:
            resource = held.get(name)
            assert resource is not None
            found[name] = resource.body
    resources.close()
    return found


SELECTING = {
    "AuthorizationPolicy": deny(),
    "PeerAuthentication": manifest(
        "PeerAuthentication", "core", "{selector: {matchLabels: {tier: core}}, mtls: {mode: STRICT}}"
    ),
    "RequestAuthentication": manifest(
        "RequestAuthentication",
        "core",
        "{selector: {matchLabels: {tier: core}}, jwtRules: [{issuer: i, jwksUri: 'https://i.test/keys'}]}",
    ),
    "Telemetry": manifest(
        "Telemetry", "core", "{selector: {matchLabels: {tier: core}}, accessLogging: [{providers: [{name: envoy}]}]}"
    ).replace("networking.istio.io/v1\n", "telemetry.istio.io/v1\n"),
    "EnvoyFilter": manifest(
        "EnvoyFilter",
        "core",
        """
        workloadSelector: {labels: {tier: core}}
        configPatches:
        - applyTo: CLUSTER
          match: {context: SIDECAR_OUTBOUND}
          patch: {operation: MERGE, value: {connect_timeout: 77s}}
        """,
    ),
    "Sidecar": manifest("Sidecar", "core", "{workloadSelector: {labels: {tier: core}}, egress: [{hosts: ['~/*']}]}"),
    "DestinationRule": manifest(
        "DestinationRule",
        "core",
        """
        host: hub.test
        workloadSelector: {matchLabels: {tier: core}}
        trafficPolicy: {connectionPool: {tcp: {connectTimeout: 77s}}}
        """,
    ),
    "LocalRateLimit": manifest(
        "LocalRateLimit", "core", "{selector: {matchLabels: {tier: core}}, http: {limits: [{rate: {count: 7}}]}}"
    ),
    "GlobalRateLimit": manifest(
        "GlobalRateLimit",
        "core",
        """
        selector: {matchLabels: {tier: core}}
        service: {host: limiter.test, port: 8081}
        domain: shop
        descriptors: [{entries: [{path: true}]}]
        """,
    ),
    "ProxyConfig": manifest("ProxyConfig", "core", "{selector: {matchLabels: {tier: core}}, concurrency: 7}").replace(
        "networking.istio.io/v1\n", "networking.istio.io/v1beta1\n"
    ),
}


@pytest.mark.parametrize("kind", SELECTING)
def test_every_kind_selects_by_the_registrys_labels(kind: str) -> None:
    world = world_of(HUB + entry() + SELECTING[kind])
    agent = {"AGENT": "1.0"} if kind == "ProxyConfig" else {}
    named, less, other = (
        sent(world, hub(labels, **agent)) for labels in (CORE, {"app": "hub"}, {"tier": "none", "x": "y"})
    )
    assert named == less == other
    assert named != sent(world_of(HUB + entry()), hub(CORE, **agent))


def test_labels_that_only_the_node_says_select_nothing() -> None:
    world = world_of(HUB + entry("{app: hub}") + deny())
    assert denied(world, hub(CORE)) == set()


@pytest.mark.parametrize("labels", ["{}", "{istio-locality: r1.z1}"])
def test_labels_of_the_node_count_where_the_registry_has_none(labels: str) -> None:
    world = world_of(entry(labels, "locality: r1/z1") + deny())
    assert denied(world, hub(CORE)) == {"core"}


def test_labels_of_the_node_count_until_the_registry_knows_the_workload() -> None:
    world = world_of(HUB + deny("node", "tier: node") + deny())
    proxy = hub({"tier": "node"})
    assert denied(world, proxy) == {"node"}
    update(world, entry())
    assert denied(world, proxy) == {"core"}
    world.apply([Delete(SOURCE, ("config", *ConfigKey("WorkloadEntry", "shop", "hub-1")))])
    assert denied(world, proxy) == {"node"}


def test_an_entry_that_no_service_selects_counts() -> None:
    assert denied(world_of(entry() + deny()), hub()) == {"core"}
    assert denied(world_of(entry() + deny()), sidecar(IP, namespace="other", labels=CORE)) == set()


def test_an_edit_of_the_label_reaches_a_connected_proxy() -> None:
    world = world_of(HUB + entry("{app: hub}") + deny())
    resources = WorldCatalog(world).open(hub())
    held = resources.set(LISTENER)
    assert held is not None
    held.snapshot()
    before = held.get("virtualInbound")
    update(world, entry())
    held = resources.set(LISTENER)
    assert held is not None
    held.snapshot()
    after = held.get("virtualInbound")
    assert before is not None and after is not None
    assert (b"policy[core]" in before.body, b"policy[core]" in after.body) == (False, True)


def consul(*instances: tuple[str, dict[str, str]], health: Health = Health.HEALTHY) -> list[Any]:
    """Services of Consul with an instance at the address, each with its labels."""
    events: list[Any] = []
    for name, labels in instances:
        service = Service(f"{name}.service.consul", "shop", (Port(80, "http", Protocol.HTTP),))
        known = Registration("vm-1", name, f"{name}-1")
        made = Endpoint(IP, 80, "http", labels, registration=known, health=health)
        events += (Upsert("consul", service), Upsert("consul", Endpoints(service.key, (made,))))
    return events


def shared() -> World:
    """Two instances at one address."""
    world = world_of(deny("one", "tier: one") + deny("two", "tier: two") + deny("node", "tier: node"))
    world.apply(consul(("web", {"tier": "one"}), ("api", {"tier": "two"})))
    return world


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, {"one", "two"}),
        ({"CONSUL_SERVICE": "web"}, {"one"}),
        ({"REGISTRATION_ID": "api-1"}, {"two"}),
        ({"CONSUL_SERVICE": "nothing"}, {"one", "two", "node"}),
        ({"CONSUL_NODE": "elsewhere"}, {"one", "two", "node"}),
    ],
)
def test_of_several_instances_at_an_address_all_count_unless_the_node_names_its_own(
    metadata: dict[str, str], expected: set[str]
) -> None:
    assert denied(shared(), hub({"tier": "node"}, **metadata)) == expected


def test_a_name_of_an_instance_elsewhere_leaves_those_at_the_address_in_force() -> None:
    world = shared()
    far = Service("far.service.consul", "shop", (Port(80, "http", Protocol.HTTP),))
    made = Endpoint("10.2.2.2", 80, "http", {"tier": "far"}, registration=Registration("vm-2", "far", "far-1"))
    world.apply([Upsert("consul", far), Upsert("consul", Endpoints(far.key, (made,)))])
    assert denied(world, hub({}, CONSUL_SERVICE_ID="far-1")) == {"one", "two"}


def test_a_router_keeps_its_own_labels_beside_those_of_the_registry() -> None:
    gateway = """
    selector: {istio: edge}
    servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
    """
    world = world_of(entry("{app: web, tier: core}") + deny() + manifest("Gateway", "edge", gateway))
    router = hub({"istio": "edge"}, node_type="router")
    assert [key.name for key in keys(world, router).scope.gateways] == ["edge"]
    assert denied(world, router) == {"core"}


def test_a_member_of_a_workload_group_has_its_labels_whatever_it_registers() -> None:
    group = manifest(
        "WorkloadGroup", "hub", "{metadata: {labels: {app: hub, tier: core}}, template: {serviceAccount: hub}}"
    )
    world = world_of(group + deny() + deny("low", "tier: low"))
    made = entry("{tier: low}").replace(
        "metadata: {", "metadata: {annotations: {istio.io/autoRegistrationGroup: hub}, "
    )
    written = world_of(made).config.peek(ConfigKey("WorkloadEntry", "shop", "hub-1"))
    assert written is not None
    registered = attrs.evolve(written, origin=attrs.evolve(written.origin, source=AUTO_REGISTRATION))
    world.apply([Upsert(AUTO_REGISTRATION, registered)])
    assert denied(world, hub({"tier": "low"})) == {"core", "low"}


TEXT = st.text("abc-1", max_size=4)
METADATA = st.dictionaries(
    st.sampled_from(
        (
            "CLUSTER_ID",
            "CONSUL_NODE",
            "CONSUL_SERVICE",
            "CONSUL_SERVICE_ID",
            "NETWORK",
            "NODE_NAME",
            "REGISTRATION_ID",
            "REGISTRATION_NODE",
            "REGISTRATION_SERVICE",
            "SERVICE_ACCOUNT",
            "WORKLOAD_NAME",
            "WORKLOAD_ENTRY",
            "AUTO_REGISTER_GROUP",
            "ISTIO_VERSION",
        )
    ),
    st.sampled_from(("", "web", "web-1", "vm-1", "nothing")) | TEXT,
)
LABELS = st.dictionaries(st.sampled_from(("app", "tier", "istio-locality", "security.istio.io/tlsMode")), TEXT)


@given(METADATA, LABELS, st.sampled_from(("", "r1", "r2/z2/s2")), st.sampled_from(("sidecar", "router")), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_policy_that_the_registry_selects_is_lost_by_what_a_node_says(
    metadata: dict[str, str], labels: dict[str, str], locality: str, node_type: str, of_consul: bool
) -> None:
    texts = deny() + SELECTING["PeerAuthentication"]
    world = world_of(texts if of_consul else HUB + entry() + texts)
    if of_consul:
        world.apply(consul(("web", CORE)))
    proxy = hub(labels, locality=locality, node_type=node_type, **metadata)
    assert denied(world, proxy) == {"core"}
    if node_type == "sidecar":
        inbound = sent(world, proxy)["virtualInbound"]
        assert b"policy[core]" in inbound and b"raw_buffer" not in inbound


def test_a_change_of_an_endpoint_that_says_the_same_of_the_workload_costs_no_keys() -> None:
    world = world_of(deny())
    world.apply(consul(("web", CORE)))
    watch = Watch(world.memo, lambda: None)
    queries = [proxy_keys.query(proxy_facts(hub())), proxy_keys.query(proxy_facts(sidecar("10.9.9.9")))]

    def cost() -> int:
        before = world.memo.statistics().calls["proxy_keys"]
        for query in queries:
            watch.get(query)
        return world.memo.statistics().calls["proxy_keys"] - before

    for query in queries:
        watch.get(query)
    world.apply(consul(("web", CORE), health=Health.UNHEALTHY))
    assert cost() == 0
    world.apply(consul(("web", {**CORE, "tier": "other"})))
    assert cost() == 1
    update(world, entry("{app: other}"))
    assert cost() == 1


@pytest.mark.parametrize(
    ("labels", "registered", "expected"),
    [
        ({}, None, "r1/z1/s2"),
        ({"topology.kubernetes.io/region": "r1", "topology.kubernetes.io/zone": "z1"}, None, "r1/z1"),
        ({"istio-locality": "r3.z3.s3"}, None, "r3/z3/s3"),
        ({"istio-locality": "r3/z.3"}, None, "r3/z.3"),
        ({"istio-locality": "r3.z3"}, "labels: {app: hub}", "r1/z1/s2"),
        ({"istio-locality": "r3.z3"}, "locality: r4/z4", "r4/z4"),
        ({}, "locality: r4/z4, labels: {app: hub}", "r4/z4"),
        ({}, "labels: {app: hub, istio-locality: r5.z5}", "r5/z5"),
        ({}, "labels: {app: hub, topology.kubernetes.io/region: r6}", "r6"),
        ({}, "locality: r4, labels: {istio-locality: r5.z5}", "r4"),
    ],
)
def test_the_locality_is_that_of_the_registry_then_of_labels_then_of_the_node(
    labels: dict[str, str], registered: str | None, expected: str
) -> None:
    text = manifest("WorkloadEntry", "hub-1", f"{{address: {IP}, {registered}}}") if registered else ""
    found = keys(world_of(text), hub(labels, locality="r1/z1/s2")).locality
    assert str(found.locality) == expected


def test_the_locality_of_an_entry_may_be_a_label() -> None:
    world = world_of(HUB + entry("{app: hub, istio-locality: r1.z1.s1}"))
    ((_, endpoints),) = world.view.endpoints_at(IP)
    assert endpoints[0].locality == Locality("r1", "z1", "s1")


@pytest.mark.parametrize(("more", "expected"), [("network: near", "near"), ("", "far")])
def test_the_network_is_that_of_the_registry_if_it_says_one(more: str, expected: str) -> None:
    assert keys(world_of(entry(more=more)), hub(NETWORK="far")).locality.network == expected
