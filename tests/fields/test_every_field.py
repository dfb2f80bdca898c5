"""Every field of every kind has an effect in an example, or stands in a table that says where else it is seen."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import betterproto2
import pytest

from mesh_pilot.istio.kinds import KINDS
from tests.door.mesh import fixed_items
from tests.door.objects import MESH, NETWORKS
from tests.fields.examples_of_fields import FOLDER, Field, Trial, fields_of, message_of, name_of, scenes
from tests.fields.mesh import Mesh

TESTS = Path(__file__).parents[1]

_PATCHES = "envoy/patches/test_patch_"
_CHAINS = f"{_PATCHES}listeners.py::test_a_filter_chain_is_matched_by_what_it_matches"
_CLUSTERS = f"{_PATCHES}clusters.py::test_a_cluster_is_matched_by_its_name_or_what_is_in_it"
_NAMESPACES = "sources/test_kubernetes_config.py::test_namespaces_are_chosen_by_their_labels_at_any_time"
_ROOTS = "istio/test_ca_certificates.py::test_roots_in_pem_and_bundles_over_https_are_accepted"
_LOCAL = "envoy/test_clusters_and_networks.py::test_a_cluster_local_service_is_reached_within_the_clients_cluster"
_FAULTS = "istio/test_http_route_rules.py::test_a_rule_of_http_routes_is_kept_or_named"
_KEYS = "envoy/test_legacy_listeners.py::test_keys_of_issuers_come_from_their_source"
_SOURCES = "test_mcp_planes.py::test_config_sources_of_the_mesh_config_are_read"
_ACME = "sources/test_acme.py::test_hosts_that_are_listed_take_the_place_of_those_of_gateways"
_GROUPS = "world/test_workload_groups.py::test_an_entry_inherits_what_it_does_not_say_itself_whatever_comes_first"
_ROLES = "mesh/test_legacy_roles.py"
_REFUSED_SESSIONS = "envoy/test_sessions.py::test_users_write_sessions_in_the_gateway_apis_objects_alone"
_SESSIONS = "envoy/test_sessions.py::test_the_only_backend_has_the_cookie_itself_by_default_with_a_name_of_the_rule"
_UNKNOWN_FILTERS = (
    "gateway_api/test_routes.py::"
    "test_a_rule_without_backends_answers_500_and_a_filter_that_is_not_known_here_stops_a_route"
)
_TABLES = f"{_PATCHES}routes.py::test_tables_of_a_router_are_matched_by_what_its_servers_say"

SHOWN_ELSEWHERE: Mapping[Field, str] = {
    "HttpFaultInjectionDelay.exponentialDelay": _FAULTS,
    "HttpFaultInjectionAbort.http2Error": _FAULTS,
    "WorkloadGroup.metadata": _GROUPS,
    "WorkloadGroupObjectMeta.labels": _GROUPS,
    "WorkloadGroup.template": _GROUPS,
    "ServerTlsSettings.caCertCredentialName": (
        "envoy/test_gateway_listeners.py::test_clients_show_certificates_where_the_mode_asks_for_them"
    ),
    "IstioEgressListener.captureMode": (
        "envoy/test_outbound_listeners.py::test_a_listener_that_binds_its_port_is_another_than_one_of_captured_connections"
    ),
    "EnvoyFilterListenerMatch.portName": f"{_PATCHES}values.py::test_a_match_that_nobody_reads_is_named",
    "EnvoyFilterListenerMatchFilterChainMatch.name": _CHAINS,
    "EnvoyFilterListenerMatchFilterChainMatch.applicationProtocols": _CHAINS,
    "EnvoyFilterListenerMatchFilterMatch.name": f"{_PATCHES}filters.py::test_network_filters_are_patched_alike",
    "EnvoyFilterRouteConfigurationMatch.gateway": _TABLES,
    "EnvoyFilterClusterMatch.portNumber": _CLUSTERS,
    "EnvoyFilterClusterMatch.service": _CLUSTERS,
    "EnvoyFilterClusterMatch.subset": _CLUSTERS,
    "EnvoyFilterPatch.value": f"{_PATCHES}routes.py::test_a_route_goes_where_the_patch_says",
    "EnvoyFilterPatch.filterClass": (
        f"{_PATCHES}filters.py::test_a_filter_that_is_added_for_a_class_goes_after_that_class"
    ),
    "PolicyTargetReference.namespace": "istio/test_security_rules.py::test_a_rule_of_security_is_kept_or_named",
    "MeshConfig.configReaders": (
        "test_mcp_access.py::test_configuration_is_read_by_the_root_namespace_and_those_that_are_named"
    ),
    "MeshConfig.configWriters": "test_mcp_sink_callers.py::test_while_no_identity_is_named_nobody_dials_from_elsewhere",
    "MeshConfig.hostOwners": (
        "world/test_host_door.py::test_an_object_of_another_namespace_is_refused_and_the_reason_says_what_to_do"
    ),
    "MeshConfig.acme": _ACME,
    "AcmeIssuer.directory": _ACME,
    "AcmeIssuer.contacts": _ACME,
    "AcmeIssuer.termsOfServiceAgreed": "istio/test_acme_rules.py::test_a_rule_holds",
    "AcmeIssuer.caCertificates": _ACME,
    "AcmeIssuer.credentials": _ACME,
    "AcmeCredential.name": _ACME,
    "AcmeCredential.hosts": _ACME,
    "LoadBalancerSettingsConsistentHashLbMagLev.tableSize": "envoy/test_clusters.py::test_consistent_hashing",
    "JwtRule.jwksUri": "sources/test_jwks.py::test_the_longest_timeout_of_those_who_want_the_same_keys_counts",
    "JwtRule.timeout": "sources/test_jwks.py::test_the_longest_timeout_of_those_who_want_the_same_keys_counts",
    "MetricsOverridesTagOverride.operation": (
        "envoy/test_request_metrics.py::test_overrides_are_for_their_metric_and_side_and_the_narrower_win"
    ),
    "TargetSelector.labels": "istio/test_legacy_rules.py::test_a_rule_holds",
    "PortSelector.name": "mesh/test_legacy_modes.py::test_the_narrowest_policy_counts_alone",
    "PeerAuthenticationMethod.jwt": "istio/test_legacy_rules.py::test_a_rule_holds",
    "Jwt.jwksUri": _KEYS,
    "Policy.principalBinding": (
        f"{_ROLES}::test_the_principal_of_a_request_is_the_peer_unless_the_policy_binds_the_origin"
    ),
    "Subject.group": f"{_ROLES}::test_all_that_a_subject_says_has_to_be_true",
    "ServiceRoleBinding.actions": f"{_ROLES}::test_bindings_are_of_roles_of_their_namespace_or_list_the_actions",
    "RbacConfig.exclusion": f"{_ROLES}::test_the_mode_says_where_access_is_controlled",
    "RbacConfig.enforcementMode": f"{_ROLES}::test_a_dry_run_is_of_a_binding_or_of_all",
    "HttpRouteFilter.extensionRef": _UNKNOWN_FILTERS,
    "GrpcRouteFilter.extensionRef": _UNKNOWN_FILTERS,
    "HttpRoute.session": _REFUSED_SESSIONS,
    "TrafficPolicy.session": _REFUSED_SESSIONS,
    "HttpSession.cookie": _REFUSED_SESSIONS,
    "SessionPersistence.absoluteTimeout": _SESSIONS,
    "HttpSession.path": _SESSIONS,
    "HttpSession.ttl": _SESSIONS,
    "HttpSession.header": (
        "envoy/test_sessions.py::test_each_of_several_backends_has_a_route_for_its_sessions_before_the_one_by_weight"
    ),
    "NetworkNetworkEndpoints.fromRegistry": (
        "envoy/test_clusters_and_networks.py::test_datacenters_are_networks_by_their_names"
    ),
    "MeshConfig.ingressService": "world/test_ingress.py::test_the_mesh_config_says_which_proxies_serve_them",
    "ProxyConfig.caCertificatesPem": "agent/test_subscriptions.py::test_it_asks_as_an_agent_and_takes_in_the_answers",
    "MeshConfig.configSources": _SOURCES,
    "ConfigSource.address": _SOURCES,
    "ConfigSource.tlsSettings": "test_mcp_planes.py::test_a_server_is_read_over_mutual_tls",
    "MeshConfig.caCertificates": _ROOTS,
    "MeshConfigCertificateData.pem": _ROOTS,
    "MeshConfigCertificateData.spiffeBundleUrl": _ROOTS,
    "MeshConfigCertificateData.trustDomains": _ROOTS,
    "MeshConfig.defaultDestinationRuleExportTo": (
        "mesh/test_destination_rules.py::test_the_mesh_default_export_holds_where_a_rule_says_nothing"
    ),
    "MeshConfig.serviceSettings": _LOCAL,
    "MeshConfigServiceSettings.settings": _LOCAL,
    "MeshConfigServiceSettings.hosts": _LOCAL,
    "MeshConfigServiceSettingsSettings.clusterLocal": _LOCAL,
    "MeshConfig.discoverySelectors": _NAMESPACES,
    "LabelSelector.matchExpressions": _NAMESPACES,
    "LabelSelectorRequirement.key": _NAMESPACES,
    "LabelSelectorRequirement.operator": _NAMESPACES,
    "LabelSelectorRequirement.values": _NAMESPACES,
}
"""Fields whose effect is not in what these proxies are sent, and a test of the effect, which has the field's name."""

ONE_VALUE = {
    "PolicyTargetReference.group": "no other is known, or goes with the kind",
    "PolicyTargetReference.kind": "goes with the group",
    "HttpRouteFilter.type": "names the field that is set",
    "GrpcRouteFilter.type": "names the field that is set",
    "HttpExternalAuthFilter.protocol": "names the field that is set",
    "HttpPathModifier.type": "names the field that is set",
    "SubjectAltName.type": "names the field that is set",
    "BackendTlsPolicyValidation.wellKnownCACertificates": "System is the only word",
    "ListenerTlsConfig.mode": "Passthrough is for TLS, Terminate for HTTPS",
    "GatewaySpecAddress.type": "the value is a host name",
}
"""Fields of which validation refuses any other value next to the other fields of the example, and why."""

ONE_WORD = {
    "RoleRef.kind": "a binding is of a ServiceRole, also where it does not say so",
    "ParentGatewayReference.group": "a ListenerSet is of a Gateway, also where it does not say so",
    "ParentGatewayReference.kind": "a ListenerSet is of a Gateway, also where it does not say so",
}
"""Fields that may be left out, and of which validation refuses any value but the one that is meant then."""

FOR_PEOPLE = {
    "SidecarPort.name": "a name; the protocol is in `protocol`",
    "StreamRouteRule.name": "a name of the rule",
    "GatewayClassSpec.description": "a string",
    "NamespaceSpec.finalizers": "Kubernetes' own: set in each Namespace by the API server",
}
"""Fields that say something to people or to Kubernetes; a warning would stand at nearly every object."""

NOT_WALKED = {
    "HttpRoute.externalAuth": "made of the ExternalAuth filters of HTTPRoutes; refused in what users write",
    "EnvoyFilterEnvoyConfigObjectMatch.waypoint": "patches for waypoints are warnings",
}
"""Fields whose message is not looked into, as nothing of it is carried out."""


@functools.cache
def trials() -> tuple[frozenset[Field], frozenset[Field]]:
    """The fields that have shown an effect in an example, and those that have one value only there."""
    found: set[Field] = set()
    refused: set[Field] = set()
    with tempfile.TemporaryDirectory() as folder:
        mesh = Mesh(fixed_items(Path(folder)))
        for path in sorted(FOLDER.glob("*.yaml")):
            for objects in scenes(path):
                trial = Trial(mesh, objects, found)
                trial.run()
                refused |= trial.refused
    return frozenset(found), frozenset(refused)


def named(name: Field) -> str:
    """A field without the package of its message."""
    return ".".join(name.rsplit(".", 2)[1:])


def every_field() -> set[Field]:
    seen: set[type[betterproto2.Message]] = set()
    ends = {*NOT_WALKED, "IngressBackend.resource"}  # a resource is a warning, whatever is in it
    kinds = (*KINDS, MESH, NETWORKS)
    return {name_of(m, f) for kind in kinds for m, f in fields_of(message_of(kind), seen, ends)}


def test_every_field_has_an_effect_or_is_said_to_have_none() -> None:
    found, refused = trials()
    tables = {*SHOWN_ELSEWHERE, *ONE_VALUE, *ONE_WORD, *FOR_PEOPLE, *NOT_WALKED}
    left = every_field() - found
    assert {name for name in left if named(name) not in tables} == set()
    # What stands in a table needs its place there.
    assert tables - {named(name) for name in left} == set()
    assert {named(name) for name in left} & set(ONE_VALUE) <= {named(name) for name in refused}


@pytest.mark.parametrize(("field", "test"), SHOWN_ELSEWHERE.items())
def test_the_test_of_a_field_is_there_and_has_its_name(field: Field, test: str) -> None:
    file, _, function = test.partition("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    assert f"def {function}(" in text
    name = field.rpartition(".")[2]
    snake = re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)
    assert re.search(rf"\b({name}|{snake})\b", text), name
