"""Whatever a Consul answers costs no more than what it is about, and never the source."""

from __future__ import annotations

import base64
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh_pilot.consul.source import ConsulSettings
from mesh_pilot.consul.source.configs import read_config, read_tree
from mesh_pilot.consul.source.instance import read_instance
from mesh_pilot.consul.source.mapping import MappedService, read_service
from mesh_pilot.model.config import Config, ConfigError
from mesh_pilot.model.events import Endpoints
from tests.sources.conformance import Picture
from tests.sources.files_feed import text
from tests.sources.test_consul_stub import CATALOG, KEY, TIMING, WEB, addresses, entry, following
from tests.support.consul_stub import consul_stub
from tests.support.envoy import eventually

PREFIX = "mesh/config"
TREE = f"/v1/kv/{PREFIX}"


def encoded(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


GOOD = {"Key": f"{PREFIX}/VirtualService/default/good", "Value": encoded(text("good", 1))}
ODD: dict[str, Any] = {
    "no-json": "hello: [",
    "no-object": "[1, 2]",
    "no-text": b"\xff\xfe",
    "folder": {"a": 1},
    "number": 7,
    "flag": True,
    "list": ["a"],
    "null": None,
    "not-base64": "%%%",
    "half-base64": "YQ",
    "deep": "[" * 100_000,
    "long-integer": "apiVersion: networking.istio.io/v1\nkind: VirtualService\nspec: " + "1" * 5000,
    "surrogate": '{"apiVersion": "networking.istio.io/v1", "kind": "Sidecar", "spec": {"ingress": "\\ud800"}}',
}


def tree() -> list[Any]:
    """Odd bodies next to a good one."""
    raw = ("not-base64", "half-base64")
    found = [
        {
            "Key": f"{PREFIX}/VirtualService/default/{name}",
            "Value": encoded(value) if isinstance(value, str | bytes) and name not in raw else value,
        }
        for name, value in ODD.items()
    ]
    return [None, 3, "x", {}, {"Key": 5}, {"Key": f"{PREFIX}/"}, GOOD, {**GOOD, "Value": 9}, *found]


async def test_odd_bodies_below_the_prefix_are_refused_one_by_one() -> None:
    async with consul_stub() as stub:
        stub.answer(TREE, tree(), index=5)
        async with following(stub, config_prefix=PREFIX) as (source, follower):
            good = ("config", "VirtualService", "default", "good")
            assert good in follower.picture.items
            told = {r.origin.location: r for r in follower.picture.rejected.values()}
            assert set(told) == {
                f"consul {PREFIX}",
                *(f"consul {PREFIX}/VirtualService/default/{name}" for name in ODD),
            }
            assert {r.key for r in told.values()} == {None, *(("config", "VirtualService", "default", n) for n in ODD)}
            assert [problem.reason for problem in told[f"consul {PREFIX}"].problems] == [
                f"{GOOD['Key']} is given twice; the first holds",
                "5 entries without a key are passed over",
            ]
            assert "in base64" in told[f"consul {PREFIX}/VirtualService/default/number"].problems[0].reason
            stub.answer(TREE, [GOOD], index=6)
            await follower.until(lambda picture: not picture.rejected)
            assert good in follower.picture.items
            assert "/v1/health/service/web" in stub.counts()
            assert source.statistics().trouble == ""


@pytest.mark.parametrize("body", ["[" * 100_000, "7", '"text"', "null", "[[]]", "{}", '[{"Key": "\\ud800"}]', "[1"])
async def test_whatever_the_body_of_an_answer_is_the_source_goes_on(body: str) -> None:
    async with consul_stub() as stub:
        stub.answer(TREE, [GOOD], index=4)
        async with following(stub, config_prefix=PREFIX) as (source, follower):
            for path in (CATALOG, WEB, TREE):
                stub.answer(path, body, index=6)
            await eventually(lambda: source.statistics().failures > 0, what="it is noticed")
            assert addresses(follower) == ["10.0.0.1"]
            stub.answer(CATALOG, {"web": 3, "a/b": ["x"], "..": None, "": []}, index=7)
            odd = {**entry("10.0.0.2")["Service"], "Meta": {"version": "a\ud800\ud83d\ude00"}}
            stub.answer(WEB, [7, entry("10.0.0.1"), {**entry(""), "Service": odd}], index=7)
            stub.answer(TREE, [GOOD], index=7)
            await follower.until(lambda _: addresses(follower) == ["10.0.0.1", "10.0.0.2"])
            expected = {
                "consul service a/b": "'a/b' can't stand in a host name: letters, digits, - and _ can",
                "consul service ..": "'..' can't stand in a host name: letters, digits, - and _ can",
                "consul service web": "1 entries without a node and a service are passed over",
            }
            await follower.until(lambda picture: reasons(picture) == expected)
            found = follower.picture.items[KEY]
            assert isinstance(found, Endpoints)
            assert found.endpoints[1].labels["version"] == "a\ufffd\U0001f600"


def reasons(picture: Picture) -> dict[str, str]:
    return {r.origin.location: r.problems[0].reason for r in picture.rejected.values()}


async def test_a_body_that_is_no_answer_takes_nothing_back_however_long_it_stands() -> None:
    async with consul_stub() as stub:
        stub.answer(TREE, [GOOD], index=4)
        timing = attrs.evolve(TIMING, hold_seconds=0.0)
        async with following(stub, config_prefix=PREFIX, timing=timing) as (source, follower):
            stub.answer(TREE, {"not": "a list"}, index=6)
            await eventually(lambda: "answers with dict" in source.statistics().trouble, what="it is told")
            await eventually(lambda: source.statistics().failures > 2, what="it is asked again")
            assert follower.take_events() == []


_NAMES = """
Node Service Checks Meta Tags ID Address Port Weights Passing TaggedAddresses lan CheckID Status Kind Datacenter port_x
service_port protocol namespace weight
"""
_KEYS = st.sampled_from(_NAMES.split())
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS | st.text(), inner, max_size=4),
    max_leaves=12,
)
_TEXTS = st.dictionaries(_KEYS | st.text(), _JSON | st.sampled_from(["80", "http", "9" * 5000, "-1", "²", "٣"]))
_ENTRIES = st.fixed_dictionaries(
    {
        "Node": _JSON | st.fixed_dictionaries({"Node": st.just("n"), "Address": _JSON, "Meta": _TEXTS}),
        "Service": _JSON
        | st.fixed_dictionaries(
            {"ID": st.just("i"), "Address": _JSON, "Port": _JSON | st.just(80), "Meta": _TEXTS, "Tags": _JSON}
        ),
        "Checks": _JSON,
    }
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(_JSON | _ENTRIES, max_size=3), st.text())
def test_any_health_entries_come_to_a_service_or_problems(entries: list[Any], name: str) -> None:
    reading = read_service(name, map(read_instance, entries), ConsulSettings())
    assert isinstance(reading, MappedService)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_JSON | st.lists(_JSON | st.fixed_dictionaries({"Key": st.text(), "Value": _JSON}), max_size=4))
def test_any_tree_comes_to_values_or_problems(data: Any) -> None:
    values, problems = read_tree(data)
    for key, value in values.items():
        assert key
        try:
            read_config("", key, value, "consul")
        except ConfigError as error:
            assert error.problems
    assert all(problem.reason for problem in problems)


@settings(deadline=None)
@given(st.binary() | st.text(alphabet="{}[]:,-#&*!|>'\"%@` \n\tab1\\ud80e").map(str.encode))
def test_any_bytes_at_a_key_come_to_an_object_or_problems(value: bytes) -> None:
    try:
        assert isinstance(read_config(PREFIX, f"{PREFIX}/VirtualService/a/b", value, "consul"), Config)
    except ConfigError as error:
        assert error.problems
