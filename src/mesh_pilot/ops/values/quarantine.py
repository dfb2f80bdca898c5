"""Quarantine for the debug pages, the web page, ``/ready`` and the metrics: objects withheld from proxies, trials, and
refusals that nothing is done about."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.explain.truth.facts import PlaneFacts
from mesh_pilot.model.counts import counted
from mesh_pilot.model.json import Json
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.problems import MORE, proxies_named
from mesh_pilot.safety.quarantine.clients import in_words
from mesh_pilot.safety.quarantine.verdicts import name_of

# -- lists of /debug/rejections


def quarantined_entries(state: PlaneState) -> list[Json]:
    """An entry for each object and domain that it is withheld from."""
    connected = [c.proxy for c in state.xds.status.proxies() if c.proxy is not None]
    found = state.facts()
    return [
        {
            "object": name_of(withheld.key),
            "where": withheld.origin,
            "fields": list(withheld.fields),
            "from": in_words(domain),
            "since": withheld.refusal.at.isoformat(timespec="seconds"),
            "served": withheld.in_its_place,
            "proxy": withheld.refusal.proxy,
            "type": RESOURCE_TYPES[withheld.refusal.type_url].short,
            "resources": list(withheld.refusal.resources),
            "reason": withheld.refusal.words,
            **proxies_named([p.name for p in connected if (domain, withheld) in found.withheld_from(p)]),
        }
        for domain, withheld in found.verdicts
    ]


def trial_entries(state: PlaneState) -> list[Json]:
    """An entry for each proxy that has a trial, with all that is withheld from it meanwhile."""
    return [
        {
            "proxy": refusal.proxy,
            "objects": [name_of(withheld.key) for withheld in trial.withheld],
            "type": RESOURCE_TYPES[refusal.type_url].short,
            "resources": list(refusal.resources),
            "reason": refusal.words,
        }
        for trial in state.facts().trials
        for refusal in [trial.withheld[-1].refusal]
    ]


def held_entries(state: PlaneState) -> list[Json]:
    """An entry for each refusal that nothing is done about."""
    return [
        {
            "proxy": held.proxy,
            "type": RESOURCE_TYPES[held.type_url].short,
            "resources": list(held.resources),
            "reason": held.words,
            "held": held.why,
        }
        for held in state.facts().on_hold
    ]


# -- /debug/syncz


def stream_entry(found: PlaneFacts, proxy: Proxy) -> dict[str, Json]:
    """The objects withheld from a proxy, each as in `quarantined_entries`, and those withheld in a trial."""
    withheld = found.withheld_from(proxy)
    return {
        "withheld": [{"object": name_of(w.key), "from": in_words(domain)} for domain, w in withheld],
        "trial": [name_of(withheld.key) for withheld in found.on_trial(proxy)],
    }


# -- tables of the web page; empty if there is nothing to show


# -- /ready and metrics


def ready_lines(state: PlaneState) -> Iterator[str]:
    """A line of ``/ready`` if something is withheld or held."""
    own = state.keeper.statistics() if state.keeper is not None else None
    if own is not None and (own.objects or own.held):
        yield (
            f"quarantine: {counted(own.objects, 'object')} withheld from proxies that refuse them, "
            f"{counted(own.held, 'refusal')} on hold; see {MORE} on the web port"
        )
