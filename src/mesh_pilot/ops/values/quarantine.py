"""Quarantine: objects withheld from proxies, trials, and refusals that nothing is done about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from mesh_pilot.model.counts import counted
from mesh_pilot.model.json import called
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.problems import MORE, PROXIES_NAMED
from mesh_pilot.safety.quarantine.clients import in_words
from mesh_pilot.safety.quarantine.verdicts import name_of


@attrs.frozen
class WithheldFrom:
    """An object that a proxy is not given in its newest version, and the group of proxies that this is so for."""

    object: str
    domain: str = attrs.field(metadata=called("from"))


@attrs.frozen(kw_only=True)
class QuarantinedObject:
    """An object that is withheld until it changes."""

    object: str
    where: str
    fields: Sequence[str]
    """The fields that the refusal names, as far as it does."""
    domain: str = attrs.field(metadata=called("from"))
    """The proxies that it is withheld from, in words."""
    since: str
    served: str
    """The version that is served instead, in words."""
    proxy: str
    """The proxy that refused it first,"""
    type: str
    resources: Sequence[str]
    """what it refused,"""
    reason: str
    """and why."""
    proxies: Sequence[str]
    """Connected proxies that it is withheld from, of those that it applies to."""
    proxies_in_all: int


@attrs.frozen
class QuarantineTrial:
    """Objects that are withheld from one proxy to find out which of them it refuses."""

    proxy: str
    objects: Sequence[str]
    type: str
    resources: Sequence[str]
    reason: str


@attrs.frozen
class RefusalOnHold:
    """A refusal that nothing is done about."""

    proxy: str
    type: str
    resources: Sequence[str]
    reason: str
    held: str
    """The reason for doing nothing."""


def quarantined_objects(state: PlaneState) -> list[QuarantinedObject]:
    """An entry for each object and group of proxies that it is withheld from."""
    from mesh_pilot.explain.truth.facts import streams_by_proxy

    facts = state.facts()
    told = [
        (own[0].proxy.name, facts.withheld_of(own[0].proxy, own))
        for own in streams_by_proxy(state.xds.status).values()
        if own[0].proxy is not None
    ]
    found = []
    for domain, withheld in facts.verdicts:
        first = withheld.refusal
        proxies = [name for name, own in told if (domain, withheld) in own]
        found.append(
            QuarantinedObject(
                object=name_of(withheld.key),
                where=withheld.origin,
                fields=withheld.fields,
                domain=in_words(domain),
                since=first.at.isoformat(timespec="seconds"),
                served=withheld.in_its_place,
                proxy=first.proxy,
                type=RESOURCE_TYPES[first.type_url].short,
                resources=first.resources,
                reason=first.words,
                proxies=proxies[:PROXIES_NAMED],
                proxies_in_all=len(proxies),
            )
        )
    return found


def trials(state: PlaneState) -> Iterator[QuarantineTrial]:
    """The trial of each proxy that has one, with all that is withheld from it during the trial."""
    for trial in state.facts().trials:
        last = trial.withheld[-1].refusal
        objects = [name_of(withheld.key) for withheld in trial.withheld]
        yield QuarantineTrial(last.proxy, objects, RESOURCE_TYPES[last.type_url].short, last.resources, last.words)


def refusals_on_hold(state: PlaneState) -> Iterator[RefusalOnHold]:
    for held in state.facts().on_hold:
        yield RefusalOnHold(held.proxy, RESOURCE_TYPES[held.type_url].short, held.resources, held.words, held.why)


def ready_lines(state: PlaneState) -> Iterator[str]:
    """A line of ``/ready`` if something is withheld or held."""
    own = state.quarantine.statistics() if state.quarantine is not None else None
    if own is not None and (own.objects or own.held):
        yield (
            f"quarantine: {counted(own.objects, 'object')} withheld from proxies that refuse them, "
            f"{counted(own.held, 'refusal')} on hold; see {MORE} on the web port"
        )
