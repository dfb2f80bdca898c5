"""Config dumps are read whatever wrote them, and whatever is odd in them is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.explain.inspection.dump import ConfigDump, DumpError, DumpState, dump_of, read_dump
from mesh_pilot.model.resource import CLUSTER, LISTENER
from tests.inspection.dumps import assignment, clusters, endpoints, listeners, routes, secrets, section


def read(*sections: dict[str, Any], **more: Any) -> ConfigDump:
    return read_dump(json.dumps({"configs": list(sections), **more}))


def test_resources_are_found_by_type_and_name() -> None:
    dump = read(
        clusters({"name": "a"}, {"name": "b"}, made_from=("ServiceEntry/shop/a",)),
        endpoints(assignment("a", "10.0.0.1:80")),
        listeners({"name": "l"}),
        routes({"name": "80"}),
        secrets({"name": "default"}),
        origins={"ServiceEntry/shop/a": "config/a.yaml:3"},
    )
    assert [*dump.clusters] == ["a", "b"]
    assert dump.clusters["a"].made_from == ("ServiceEntry/shop/a",)
    assert dump.place("ServiceEntry/shop/a") == "config/a.yaml:3"
    assert ([*dump.endpoints], [*dump.listeners], [*dump.routes], [*dump.secrets]) == (
        ["a"], ["l"], ["80"], ["default"],
    )  # fmt: skip


def test_the_version_in_use_is_the_active_one_then_the_static_one_then_the_warming_one() -> None:
    dump = read(
        section(
            "Clusters",
            dynamic_warming_clusters=[{"cluster": {"name": "both", "type": "EDS"}}, {"cluster": {"name": "new"}}],
            dynamic_active_clusters=[{"cluster": {"name": "both", "type": "STATIC"}}],
            static_clusters=[{"cluster": {"name": "xds"}}],
        )
    )
    states = {name: resource.state for name, resource in dump.clusters.items()}
    assert states == {"both": DumpState.ACTIVE, "new": DumpState.WARMING, "xds": DumpState.STATIC}
    assert dump.clusters["both"].message["type"] == "STATIC"
    assert len(dump.of(CLUSTER)) == 4


def test_a_refused_listener_is_listed_with_its_reason_and_not_in_use() -> None:
    failed = {"failed_configuration": {"name": "odd"}, "details": "cannot bind", "version_info": "2"}
    kept = {"name": "kept", "active_state": {"listener": {"name": "kept"}}, "error_state": {"details": "no"}}
    dump = read(section("Listeners", dynamic_listeners=[{"name": "odd", "error_state": failed}, kept]))
    assert [*dump.listeners] == ["kept"]
    assert {r.name: (r.state, r.error) for r in dump.of(LISTENER)} == {
        "odd": (DumpState.REFUSED, "cannot bind"),
        "kept": (DumpState.ACTIVE, "no"),
    }


def test_virtual_hosts_of_their_own_are_in_their_route_tables() -> None:
    host = {"@type": "type.googleapis.com/envoy.config.route.v3.VirtualHost", "name": "8080/a.test"}
    dump = read(
        routes({"name": "8080", "virtual_hosts": [{"name": "all"}]}),
        section("VirtualHosts", dynamic_virtual_hosts=[{"virtual_host": host, "made_from": ["VirtualService/x/a"]}]),
    )
    table = dump.routes["8080"]
    assert table.message["virtual_hosts"] == [{"name": "all"}, {"name": "8080/a.test"}], "as Envoy shows them"
    assert table.made_from == ("VirtualService/x/a",)


def test_istioctls_spelling_is_read_and_names_within_are_left_alone() -> None:
    cluster = {
        "name": "a",
        "connectTimeout": "10s",
        "metadata": {"filterMetadata": {"istio": {"defaultOriginalPort": 80}}},
        "typedExtensionProtocolOptions": {"x": {"@type": "y", "explicitHttpConfig": {}}},
    }
    dump = read(section("Clusters", versionInfo="1", dynamicActiveClusters=[{"versionInfo": "1", "cluster": cluster}]))
    message = dump.clusters["a"].message
    assert message["connect_timeout"] == "10s"
    assert message["metadata"]["filter_metadata"]["istio"] == {"defaultOriginalPort": 80}
    assert message["typed_extension_protocol_options"]["x"]["explicit_http_config"] == {}


def test_a_dump_and_the_state_of_hosts_may_follow_one_another() -> None:
    statuses = {"cluster_statuses": [{"name": "a", "host_statuses": [{"weight": 1}]}]}
    dump = read_dump(json.dumps({"configs": [clusters({"name": "a"})]}) + "\n" + json.dumps(statuses) + "\n")
    assert [*dump.clusters] == ["a"]
    assert dump.host_statuses == {"a": [{"weight": 1}]}


@pytest.mark.parametrize("text", ["", "{}", "[]", "no", '{"configs": 1}', b"\xff\xfe", "[" * 100_000])
def test_what_is_no_dump_is_refused_in_one_line(text: str | bytes) -> None:
    with pytest.raises(DumpError) as raised:
        read_dump(text, "web.json")
    assert str(raised.value).startswith("web.json is no")
    assert "\n" not in str(raised.value)


FIELDS = st.sampled_from(
    ["name", "cluster", "listener", "active_state", "error_state", "details", "dynamic_listeners", "made_from",
     "dynamic_active_clusters", "versionInfo", "virtual_host", "dynamic_virtual_hosts", "virtual_hosts", "domains"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(["Clusters", "Listeners", "Routes", "VirtualHosts", "Secrets", "Bootstrap", "Unknown"])


@given(st.lists(st.tuples(KINDS, st.dictionaries(FIELDS, VALUES, max_size=4)), max_size=4))
def test_whatever_is_in_a_section_it_is_read(parts: list[tuple[str, dict[str, Any]]]) -> None:
    dump = dump_of({"configs": [{**values, **section(kind)} for kind, values in parts]})
    assert dump is not None
    for found in (dump.clusters, dump.listeners, dump.routes, dump.secrets):
        assert all(isinstance(name, str) for name in found)
