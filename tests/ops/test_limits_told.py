"""Rate limits in what people are told: the description of a proxy, and analysis."""

from __future__ import annotations

from pathlib import Path

from mesh_pilot.ops.explain.proxy_description import describe_proxy
from tests.support.command import mesh_pilot
from tests.support.manifests import manifest
from tests.support.routing import target
from tests.support.worlds import sidecar, world_of

LOCAL = manifest("LocalRateLimit", "own", "{selector: {matchLabels: {app: web}}, http: {limits: [{rate: {count: 1}}]}}")
SHARED = manifest(
    "GlobalRateLimit",
    "shared",
    """
    selector: {matchLabels: {app: web}}
    service: {host: limiter.infra, port: 8081}
    domain: shop
    descriptors: [{entries: [{path: true}]}]
    """,
)


def test_a_proxy_is_described_with_its_rate_limits() -> None:
    world = world_of(LOCAL + SHARED)
    told = {}
    for app in ("web", "other"):
        proxy = sidecar(namespace="shop", labels={"app": app})
        found = describe_proxy(world.view, proxy, target(world, proxy))
        told[app] = {line.text for _, lines in found.sections for line in lines if "RateLimit" in line.text}
    assert told == {"web": {"LocalRateLimit applies", "GlobalRateLimit applies"}, "other": set()}


def test_analysis_names_servers_that_are_unknown_and_limits_that_select_no_workload(tmp_path: Path) -> None:
    entry = "{hosts: [a.shop], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [%s]}"
    at = "{address: 10.0.0.1, labels: {app: %s}}"
    for app in ("web", "other"):
        (tmp_path / "a.yaml").write_text(LOCAL + SHARED + manifest("ServiceEntry", "a", entry % (at % app)))
        told = mesh_pilot("analyze", str(tmp_path)).out
        assert "spec.service.host: no service limiter.infra is known: nothing is limited" in told
        assert told.count("spec.selector.matchLabels") == (0 if app == "web" else 2), told
