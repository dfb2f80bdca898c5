"""Patches of EnvoyFilters in the bootstrap of an agent's Envoy, and what the control plane says of other Envoys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh_pilot.agent.bootstrap.patches import BootstrapPatch, choose, read_patches, with_patches
from mesh_pilot.base.protowire import field
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.proxy import BOOTSTRAP_PATCHES, Proxy
from mesh_pilot.model.resource import PROXY_CONFIG
from mesh_pilot.ops.values.problems import at_proxies
from mesh_pilot.world import World
from tests.support.binaries import require_binary
from tests.support.envoy import eventually, http_client
from tests.support.fleet import fleet
from tests.support.manifests import manifest
from tests.support.proxy_process import proxy_process
from tests.support.rows import rows
from tests.support.worlds import sidecar, update, world_of

RUNTIME = "{layered_runtime: {layers: [{name: patched, static_layer: {mesh.patched: $value}}]}}"
TAGS = "{stats_config: {stats_tags: [{tag_name: team, fixed_value: checkout}]}}"
UNKNOWN = "{stats_sinks: [{name: nowhere, typed_config: {'@type': type.googleapis.com/envoy.config.core.v3.Node}}]}"


def patches(name: str, *values: str, context: str = "ANY", **more: object) -> str:
    listed = ", ".join(
        f"{{applyTo: BOOTSTRAP, match: {{context: {context}}}, patch: {{operation: MERGE, value: {value}}}}}"
        for value in values
    )
    return manifest("EnvoyFilter", name, f"{{configPatches: [{listed}]}}", **more)


def sent(world: World, agent: Proxy) -> tuple[BootstrapPatch, ...]:
    """What an agent is sent."""
    settings = WorldCatalog(world).open(agent).set(PROXY_CONFIG)
    assert settings is not None
    (resource,) = settings.snapshot().listing
    return read_patches(resource.body)


def agent(**more: Any) -> Proxy:
    return sidecar(namespace="shop", AGENT="1.0", **more)


def test_an_agent_is_sent_the_patches_of_its_bootstrap_in_their_order() -> None:
    world = world_of(
        patches("b", TAGS)
        + patches("a", RUNTIME, "{stats_flush_interval: 7s}", value=1)
        + patches("gateways", TAGS, context="GATEWAY")
        + manifest("EnvoyFilter", "other", "{workloadSelector: {labels: {app: other}}}")
    )
    found = sent(world, agent())
    assert [patch.place.removeprefix("EnvoyFilter/shop/") for patch in found] == [
        "a: spec.configPatches[0]",
        "a: spec.configPatches[1]",
        "b: spec.configPatches[0]",
    ]
    assert found[1].value == {"stats_flush_interval": "7s"}
    assert len({patch.mark for patch in found}) == 3
    router = sent(world, agent(node_type="router"))
    assert "EnvoyFilter/shop/gateways: spec.configPatches[0]" in [patch.place for patch in router]


def test_another_value_has_another_mark_and_other_filters_change_nothing() -> None:
    world = world_of(patches("a", RUNTIME, value=1))
    (before,) = sent(world, agent())
    listener = "{applyTo: LISTENER, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 1}}}"
    update(world, manifest("EnvoyFilter", "b", f"{{configPatches: [{listener}]}}"))
    assert sent(world, agent()) == (before,)
    update(world, patches("a", RUNTIME, value=2))
    (after,) = sent(world, agent())
    assert after.mark != before.mark


def test_proxies_whose_bootstrap_lacks_a_patch_are_told() -> None:
    world = world_of(patches("a", TAGS))
    (patch,) = sent(world, agent())
    catalog = WorldCatalog(world)
    catalog.open(sidecar(name="alone", namespace="shop"))
    catalog.open(sidecar(name="old", namespace="shop", **{BOOTSTRAP_PATCHES: "12345678"}))
    catalog.open(sidecar(name="new", namespace="shop", **{BOOTSTRAP_PATCHES: f"12345678,{patch.mark}"}))
    catalog.open(agent(name="new"))
    (entry,) = rows(at_proxies(catalog.diagnostics().patches()))
    assert entry["proxies"] == ["alone.shop", "old.shop"]
    assert (entry["object"], entry["resource"]) == ("EnvoyFilter/shop/a", "bootstrap")


def test_a_patch_that_cannot_be_read_costs_itself() -> None:
    good = field(1000, field(1, b"good") + field(2, b"1") + field(3, b'{"stats_flush_interval": "7s"}'))
    bad = [field(1000, field(1, b"bad") + field(3, text)) for text in (b"{", b"[]", b"\xff")]
    assert [patch.place for patch in read_patches(b"".join([*bad, good]))] == ["good"]
    assert read_patches(b"\xff") == read_patches(None) == ()


def test_parts_of_one_name_are_merged_and_the_node_says_what_is_there() -> None:
    bootstrap = {
        "node": {"id": "x", "metadata": {"A": "b"}},
        "layered_runtime": {"layers": [{"name": "static", "static_layer": {"a": 1}}]},
    }
    layer = {"layered_runtime": {"layers": [{"name": "static", "static_layer": {"b": 2}}]}}
    resolver = {"typed_dns_resolver_config": {"name": "r"}}
    found = with_patches(bootstrap, [BootstrapPatch("a", "11", layer), BootstrapPatch("b", "22", resolver)])
    assert found["layered_runtime"]["layers"] == [{"name": "static", "static_layer": {"a": 1, "b": 2}}]
    assert found["node"]["metadata"] == {"A": "b", "OWN_DNS_RESOLVER": "true", "BOOTSTRAP_PATCHES": "11,22"}
    assert with_patches(bootstrap, ()) == bootstrap


@pytest.mark.parametrize(
    ("refused", "merged", "left_out"),
    [
        ([], "abc", ""),
        (["b"], "ac", "b"),
        (["a", "c"], "b", "ac"),
        (["ab"], "ac", "b"),
        ([""], "abc", ""),
    ],
    ids=["all taken", "one refused", "two refused", "a contradiction: the first stays", "not the patches' fault"],
)
async def test_what_envoy_refuses_is_left_out(refused: list[str], merged: str, left_out: str) -> None:
    async def why_refused(tried: Sequence[BootstrapPatch]) -> str:
        names = {patch.place for patch in tried}
        return next((f"{bad} is bad" for bad in refused if names.issuperset(bad)), "")

    chosen = await choose([BootstrapPatch(name, name, {}) for name in "abc"], why_refused)
    assert [patch.place for patch in chosen.merged] == list(merged)
    assert "".join(name for name in chosen.left_out) == left_out


@pytest.mark.envoy
@pytest.mark.timeout(180)
async def test_the_envoy_of_an_agent_runs_on_the_patches_that_it_takes_and_follows_changes(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    require_binary("envoy")
    config = patches("good", RUNTIME, TAGS, value=1) + patches("unknown", UNKNOWN)
    async with fleet(tmp_path, config) as mesh:
        own = ("--name=web-1", "--namespace=shop", "--ip=127.0.0.1", "--plaintext", f"--pilot={mesh.plane_address}")
        async with proxy_process(tmp_path / "proxy", free_ports(4), *own) as proxy:
            await proxy.wait_ready()

            async def admin(path: str) -> httpx.Response:
                async with http_client() as client:  # its own connection: the next Envoy may answer
                    return await client.get(f"http://127.0.0.1:{proxy.ports[0]}{path}")

            async def runtime() -> Any:
                try:
                    return (await admin("/runtime")).json()["entries"]["mesh.patched"]["final_value"]
                except httpx.HTTPError:
                    return None

            assert await runtime() == "1"
            assert 'team="checkout"' in (await admin("/stats/prometheus")).text
            found = (await proxy.state())["bootstrap"]
            assert [place.partition(": ")[0] for place in found["patches"]] == ["EnvoyFilter/shop/good"] * 2
            assert list(found["patches_left_out"]) == ["EnvoyFilter/shop/unknown: spec.configPatches[0]"]
            assert "envoy refuses a patch of its bootstrap; it is left out" in proxy.log.read_text()
            told = [entry["object"] for entry in rows(at_proxies(mesh.plane.state.catalog.diagnostics().patches()))]
            assert told == ["EnvoyFilter/shop/unknown"]

            await mesh.apply(patches("good", RUNTIME, value=2))

            async def is_followed() -> bool:
                return await runtime() == "2" and (await proxy.state())["envoy"]["hot_restarts"] == 1

            await eventually(is_followed, what="Envoy is hot restarted with the other value")
            assert rows(at_proxies(mesh.plane.state.catalog.diagnostics().patches())) == []
