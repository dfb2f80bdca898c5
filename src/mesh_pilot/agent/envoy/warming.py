"""The resources that warm at an Envoy, from its admin interface: two gauges, and pages about them if one is not 0.

While Envoy starts, the gauge of listeners is 0 though they wait, so that the pages are asked for then, too. Sources:
Envoy, "Administration interface" (``/init_dump``, ``/config_dump?resource=``), and the names of its init targets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import trio

from mesh_pilot.agent.envoy.admin import AdminClient, AdminError
from mesh_pilot.agent.envoy.runner import EnvoyRunner
from mesh_pilot.agent.relay.subscriptions import Subscriptions
from mesh_pilot.base.reading import as_object
from mesh_pilot.model.resource import CLUSTER, IDENTITY_SECRET, LISTENER, TRUST_SECRET
from mesh_pilot.model.warming import MAX_REPORTED, Awaited, WaitKind, WarmingResource

LOOK_SECONDS = 5.0
"""Between two looks. Envoy goes through all its gauges to find two."""

_GAUGES = r"^(listener_manager\.total_listeners_warming|cluster_manager\.warming_clusters)$&type=Gauges"
_LISTENERS = "/config_dump?resource=dynamic_listeners&mask=name,warming_state.last_updated"
_CLUSTERS = "/config_dump?resource=dynamic_warming_clusters"
_SECRETS = "/config_dump?resource=dynamic_warming_secrets&mask=name"

_OF_LISTENER = re.compile(r"init manager Listener-local-init-manager (?P<name>.*) (?P<hash>\d+)")
_TARGETS = (
    (WaitKind.RDS, re.compile(r"RdsRouteConfigSubscription (?:.* )?init (.*)")),
    (WaitKind.VHDS, re.compile(r"Vhds\w* (.*)")),
    (WaitKind.SDS, re.compile(r"SdsApi (.*)")),
    (WaitKind.ECDS, re.compile(r"FilterConfigSubscription init (.*)")),
    (WaitKind.FETCH, re.compile(r"RemoteAsyncDataProvider()|[Jj]wks \w+ fetching.*()")),
)
"""How Envoy calls what an init manager waits for, with its name."""


async def watch_warming(envoy: EnvoyRunner, subscriptions: Subscriptions) -> None:
    """Report what warms at the Envoy that runs, whenever that changes. For ever; cancelled, nothing is left behind."""
    while True:
        child = envoy.current
        if child is None:
            await subscriptions.report_warming(())
        else:
            try:
                found = await look(await child.admin(), is_live=not child.why_not_ready)
                await subscriptions.report_warming(found)
            except AdminError:
                pass  # it ends, or is busy; the last report counts until the next
        await trio.sleep(LOOK_SECONDS)


async def look(admin: AdminClient, *, is_live: bool) -> tuple[WarmingResource, ...]:
    """The resources that warm now, `MAX_REPORTED` at most. Raises AdminError."""
    gauges = await admin.stats(_GAUGES)
    found: list[WarmingResource] = []
    if not is_live or gauges.get("listener_manager.total_listeners_warming"):
        found += listeners(await _page(admin, _LISTENERS), await _page(admin, "/init_dump"))
    if gauges.get("cluster_manager.warming_clusters"):
        found += clusters(await _page(admin, _CLUSTERS), await _page(admin, _SECRETS))
    return tuple(found[:MAX_REPORTED])


async def _page(admin: AdminClient, path: str) -> Mapping[str, Any]:
    try:
        page = json.loads(await admin.get(path))
    except ValueError as error:
        raise AdminError(f"Envoy's admin interface on {admin.address} answers {path} with no JSON: {error}") from error
    return as_object(page)


def listeners(dump: Mapping[str, Any], targets: Mapping[str, Any]) -> Iterator[WarmingResource]:
    """The listeners that warm, of the pages about listeners and about init targets.

    Their hashes tell versions apart. Envoy's ``version_info`` does not: a listener of which only filter chains change
    keeps it.
    """
    awaited: dict[str, list[Awaited]] = {}
    hashes: dict[str, str] = {}
    for each in targets.get("unready_targets_dumps", ()):
        matched = _OF_LISTENER.fullmatch(each.get("name", ""))
        if matched is not None:
            awaited.setdefault(matched["name"], []).extend(map(_awaited, each.get("target_names", ())))
            hashes[matched["name"]] = matched["hash"]
    for each in dump.get("configs", ()):
        if "warming_state" in each:
            name = each.get("name", "")
            waits_for = tuple(sorted(set(awaited.get(name, ()))))
            yield WarmingResource(LISTENER, name, hashes.get(name, ""), waits_for)


def _awaited(target: str) -> Awaited:
    for kind, pattern in _TARGETS:
        matched = pattern.search(target)
        if matched is not None:
            return _secret(matched[1]) if kind is WaitKind.SDS else Awaited(kind, matched[1] or "")
    return Awaited(WaitKind.OTHER, target.removeprefix("shared ").removeprefix("target "))


def _secret(name: str) -> Awaited:
    """A secret: Envoy gets its own certificate and the roots from its agent, whatever the control plane serves."""
    return Awaited(WaitKind.IDENTITY if name in (IDENTITY_SECRET, TRUST_SECRET) else WaitKind.SDS, name)


def clusters(dump: Mapping[str, Any], secrets: Mapping[str, Any]) -> Iterator[WarmingResource]:
    """The clusters that warm, of the pages about them and about missing secrets."""
    lacking = {each.get("name", "") for each in secrets.get("configs", ())}
    for each in dump.get("configs", ()):
        cluster = each.get("cluster", {})
        waits_for = tuple(sorted(set(_of_cluster(cluster, lacking))))
        yield WarmingResource(CLUSTER, cluster.get("name", ""), waits_for=waits_for)


def _of_cluster(cluster: Mapping[str, Any], lacking: Collection[str]) -> Iterator[Awaited]:
    kind = cluster.get("type", "") or cluster.get("cluster_type", {}).get("name", "")
    if kind == "EDS":
        yield Awaited(
            WaitKind.EDS, cluster.get("eds_cluster_config", {}).get("service_name") or cluster.get("name", "")
        )
    if "dns" in kind.lower():
        yield Awaited(WaitKind.DNS)
    if cluster.get("health_checks"):
        yield Awaited(WaitKind.HEALTH)
    yield from (_secret(name) for name in _secret_names(cluster) if name in lacking)


def _secret_names(part: Any) -> Iterator[str]:
    """The names of the secrets in any part of a cluster."""
    if isinstance(part, dict):
        if "sds_config" in part:
            yield str(part.get("name", ""))
        for each in part.values():
            yield from _secret_names(each)
    elif isinstance(part, list):
        for each in part:
            yield from _secret_names(each)
