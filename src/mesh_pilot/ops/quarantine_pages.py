"""Quarantine for the debug pages, the web page, ``/ready`` and the metrics: objects withheld from proxies, trials, and
refusals that nothing is done about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import attrs

from mesh_pilot.model.events import Quarantine, Withheld
from mesh_pilot.model.json import Json
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.ops.page.html import bad, moment, table
from mesh_pilot.ops.reports import MORE, first_names, proxies_named
from mesh_pilot.ops.state import PlaneState
from mesh_pilot.quarantine.keeper import Held
from mesh_pilot.quarantine.verdicts import name_of


@attrs.frozen
class QuarantineReport:
    """Everything that quarantine does now. All empty if it is off."""

    verdicts: tuple[tuple[str, Withheld], ...] = ()
    """Objects that are withheld until they change, each with its domain."""
    trials: tuple[Quarantine, ...] = ()
    held: tuple[Held, ...] = ()

    def withheld_from(self, proxy: Proxy) -> list[tuple[str, Withheld]]:
        """The objects withheld from a proxy, each with its domain; without those of a trial."""
        return [(domain, withheld) for domain, withheld in self.verdicts if domain in proxy.domains]

    def on_trial(self, proxy: Proxy) -> list[str]:
        """The objects withheld from a proxy only in a trial."""
        known = {withheld.key for _, withheld in self.withheld_from(proxy)}
        trials = (trial for trial in self.trials if trial.domain in proxy.domains)
        return [name_of(w.key) for trial in trials for w in trial.withheld if w.key not in known]

    def why_held(self, proxy: Proxy, type_url: str) -> str:
        """The reason for doing nothing about a proxy's refusal of a type; empty if something is done."""
        found = (held.why for held in self.held if (held.proxy, held.type_url) == (proxy.name, type_url))
        return next(found, "")


def report(state: PlaneState) -> QuarantineReport:
    if state.keeper is None:
        return QuarantineReport()
    in_force = state.keeper.withheld()
    trials = tuple(quarantine for quarantine in in_force if quarantine.is_trial)
    return QuarantineReport(tuple(_verdicts(in_force)), trials, state.keeper.held())


def _verdicts(in_force: Iterable[Quarantine]) -> Iterator[tuple[str, Withheld]]:
    """The verdicts, each in the domain that it is about: the quarantine of a scope has those of its build, too."""
    by_domain = {quarantine.domain: quarantine.withheld for quarantine in in_force if not quarantine.is_trial}
    for domain, withheld in by_domain.items():
        for each in withheld:
            if domain == each.refusal.build or each not in by_domain.get(each.refusal.build, ()):
                yield domain, each


def domain_in_words(domain: str, withheld: Withheld) -> str:
    """``all proxies of envoy 1.40.0``."""
    return f"all proxies of {domain}" if domain == withheld.refusal.build else f"proxies of {domain}"


# -- lists of /debug/rejections


def quarantined_entries(state: PlaneState) -> list[Json]:
    """An entry for each object and domain that it is withheld from."""
    connected = [c.proxy for c in state.xds.status.proxies() if c.proxy is not None]
    return [
        {
            "object": name_of(withheld.key),
            "where": withheld.origin,
            "fields": list(withheld.fields),
            "from": domain_in_words(domain, withheld),
            "since": withheld.refusal.at.isoformat(timespec="seconds"),
            "served": withheld.in_its_place,
            "proxy": withheld.refusal.proxy,
            "type": RESOURCE_TYPES[withheld.refusal.type_url].short,
            "resources": list(withheld.refusal.resources),
            "reason": withheld.refusal.words,
            **proxies_named([proxy.name for proxy in connected if domain in proxy.domains]),
        }
        for domain, withheld in report(state).verdicts
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
        for trial in report(state).trials
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
        for held in report(state).held
    ]


# -- /debug/syncz


def stream_entry(found: QuarantineReport, proxy: Proxy) -> dict[str, Json]:
    """The objects withheld from a proxy, each as in `quarantined_entries`, and those withheld in a trial."""
    withheld = found.withheld_from(proxy)
    return {
        "withheld": [{"object": name_of(w.key), "from": domain_in_words(domain, w)} for domain, w in withheld],
        "trial": list(found.on_trial(proxy)),
    }


# -- tables of the web page; empty if there is nothing to show


def quarantine_tables(state: PlaneState) -> str:
    found = report(state)
    rows = [
        (
            moment(w.refusal.at),
            name_of(w.key),
            ", ".join(filter(None, (w.origin, *w.fields))),
            domain_in_words(domain, w),
            w.in_its_place,
            f"{w.refusal.proxy}: {RESOURCE_TYPES[w.refusal.type_url].short} {first_names(w.refusal.resources)}",
            bad(w.refusal.words),
        )
        for domain, w in found.verdicts
    ]
    heads = ("since", "object", "where", "withheld from", "served instead", "refused first by", "reason")
    shown = table("Quarantine: objects withheld until they change", heads, rows, "", more=MORE) if rows else ""
    held = [
        (h.proxy, RESOURCE_TYPES[h.type_url].short, first_names(h.resources, 3), bad(h.words), h.why)
        for h in found.held
    ]
    held_heads = ("proxy", "type", "resources", "reason", "why nothing is withheld")
    return shown + (table("Refused resources on hold", held_heads, held, "", more=MORE) if held else "")


# -- /ready and metrics


def ready_lines(state: PlaneState) -> Iterator[str]:
    """A line of ``/ready`` if something is withheld or held."""
    own = state.keeper.statistics() if state.keeper is not None else None
    if own is not None and (own.objects or own.held):
        yield (
            f"quarantine: {own.objects} objects are withheld from proxies that refuse them, "
            f"{own.held} refusals are on hold; see {MORE} on the web port"
        )


def quarantined_kinds(found: QuarantineReport) -> Counter[str]:
    """The number of withheld objects by kind."""
    keys = {withheld.key for _, withheld in found.verdicts}
    return Counter(key[1] if key[0] == "config" else key[0] for key in keys)
