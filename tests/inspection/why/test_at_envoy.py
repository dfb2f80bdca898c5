"""The choices of ``why`` are those of a real Envoy: random VirtualServices and requests, one Envoy."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import h11
import pytest
import trio

from mesh_pilot.explain.inspection.dump import read_dump
from mesh_pilot.explain.inspection.why.answer import WhyAnswer
from mesh_pilot.explain.inspection.why.evidence import DumpEvidence
from mesh_pilot.explain.inspection.why.request import WhyRequest
from mesh_pilot.explain.inspection.why.story import explain
from mesh_pilot.ops.explain.attribution import Attribution
from mesh_pilot.ops.explain.plane_evidence import PlaneEvidence
from mesh_pilot.ops.values.proxies import find_proxy
from tests.support.fleet import fleet
from tests.support.manifests import manifest, service, subsets, version
from tests.support.random_routes import HOSTS, Asked, random_request, random_rules
from tests.support.shop import CLIENT

pytestmark = pytest.mark.envoy


@attrs.frozen
class Chosen:
    """A choice, as Envoy shows it and as ``why`` says it."""

    status: int
    """0: that of a backend."""
    rule: str = ""
    clusters: frozenset[str] = frozenset()
    """The backends that may have answered."""


class Client:
    """Requests exactly as they are written, over one connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stream: trio.SocketStream | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()

    async def ask(self, asked: Asked) -> Chosen:
        if self._stream is None:
            self._stream = await trio.open_tcp_stream("127.0.0.1", self._port)
            self._http = h11.Connection(h11.CLIENT)
        request = h11.Request(method=asked.method, target=asked.path, headers=[("host", asked.host), *asked.headers])
        await self._stream.send_all((self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        head, body = None, b""
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._stream.receive_some())
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
        assert head is not None
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
            await self._stream.aclose()
            self._stream = None
        else:
            self._http.start_next_cycle()
        rule = next((value.decode() for name, value in head.headers if name == b"x-rule"), "")
        if body.startswith(b"{"):
            return Chosen(0, rule, frozenset({json.loads(body)["name"]}))
        # A request that is malformed meets no route, but may find one on its way back.
        return Chosen(head.status_code, rule if head.status_code != 400 else "")


def of_answer(answer: WhyAnswer, rule: str) -> Chosen:
    result = answer.result
    if result["kind"] == "cluster":
        names = frozenset(cluster["name"].split("|")[2] for cluster in result["clusters"])
        return Chosen(0, rule, names)
    return Chosen(result["status"], rule)


def asked_why(asked: Asked, port: int) -> WhyRequest:
    headers = tuple((name.lower(), value) for name, value in asked.headers)
    host = asked.host.partition(":")[0].lower()
    return WhyRequest(
        host, port, asked.path, method=asked.method, headers=(*headers, ("host", asked.host)), address="127.0.0.1"
    )


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("seed", "requests"), [(15, 400), *(pytest.param(seed, 3000, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)
async def test_the_rule_that_why_names_is_the_one_that_envoy_takes(
    tmp_path: Path, free_ports: Callable[[int], list[int]], seed: int, requests: int
) -> None:
    chance = random.Random(seed)
    (port,) = free_ports(1)
    async with fleet(tmp_path, mesh="outboundTrafficPolicy: {mode: REGISTRY_ONLY}") as mesh:
        v1, v2 = await mesh.backend("v1"), await mesh.backend("v2")
        upstream = [{"destination": {"host": "up.example.com", "subset": name}} for name in ("v1", "v2")]
        config = service(["up.example.com", *HOSTS], port, version("v1", v1), version("v2", v2))
        config += subsets("up.example.com", "v1", "v2")
        for host in HOSTS:
            rules = random_rules(chance, upstream)
            name = host.replace("*", "any").replace(".", "-")
            config += manifest("VirtualService", name, {"hosts": [host], "http": rules})
        await mesh.apply(config)
        envoy = await mesh.envoy(CLIENT)
        await mesh.assert_all_taken()

        state = mesh.plane.state
        proxy = find_proxy(state, "web.shop")
        assert proxy is not None
        dumps, opened = state.xds.status.config_dump(proxy), state.catalog.opened(proxy)
        assert dumps and opened is not None
        from_plane = PlaneEvidence(dumps, {})
        from_envoy = DumpEvidence(read_dump(json.dumps({"configs": await envoy.config_dump(endpoints=True)})))
        attribution = Attribution(opened.view, opened.target)

        client = Client(port)
        kinds: Counter[str] = Counter()
        wrong = []
        for _ in range(requests):
            asked = random_request(chance, port)
            seen = await client.ask(asked)
            answer = explain(from_plane, asked_why(asked, port))
            said = of_answer(answer, rule_of(answer, attribution))
            if seen.clusters and seen.clusters <= said.clusters:
                said = attrs.evolve(said, clusters=seen.clusters)  # its weights are not compared here
            if seen != said:
                wrong.append((asked, seen, said, [s.text for s in answer.steps if s.step == "route"]))
            live = explain(from_envoy, asked_why(asked, port))
            assert [s for s in live.steps if s.step == "route"] == [s for s in answer.steps if s.step == "route"]
            kinds[f"{seen.status} {'rule' if seen.rule else ''}"] += 1
        await client.aclose()
        assert wrong == []
        # All kinds of answers were compared, and most of them by a rule.
        assert {"0 rule", "502 ", "400 "} <= kinds.keys()
        assert sum(count for kind, count in kinds.items() if kind.endswith("rule")) > requests / 4


def rule_of(answer: WhyAnswer, attribution: Attribution) -> str:
    """The index of the rule that decides the route; empty without one."""
    for step, deciders in attribution.steps(answer):
        if step.step == "route" and step in answer.steps:
            field: Any = deciders[0].field
            return field.removeprefix("spec.http[").partition("]")[0] if field.startswith("spec.http[") else ""
    return ""
