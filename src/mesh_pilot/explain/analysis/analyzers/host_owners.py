"""Hosts that objects of several namespaces claim, and those that the mesh config gives to a namespace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import HostClaim
from mesh_pilot.world.host_admission import KINDS, problems_of
from mesh_pilot.world.host_owners import Claim, HostPlace, Order, place_text, rivals, succession
from mesh_pilot.world.names import MESH_GATEWAY, export_namespaces, full_gateway


def contested(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Objects with a host that another namespace owns, for clients that see both."""
    by_place: dict[HostPlace, list[Claim]] = defaultdict(list)
    for place, claim in _claims(survey):
        by_place[place].append(claim)
    for place, claims in by_place.items():
        if len({claim.key.namespace for claim in claims}) < 2:
            continue
        order = _order(survey, place, claims)
        for claim in claims:
            if before := _before(claim, order):
                owner = next((each.key for each in claims if each.key.namespace == before.namespace), None)
                config = survey.picture.find(*claim.key)
                if owner is not None and config is not None:
                    yield _message(config, place, owner, is_known=bool(survey.picture.owners.get(place)))


def refused(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Objects with a host that ``hostOwners`` gives to another namespace."""
    owners = survey.mesh.host_owners
    for kind in sorted(KINDS) if owners else ():
        for config in survey.of(kind):
            for problem in problems_of(config, owners, survey.picture):
                yield found(codes.HOST_NOT_ALLOWED, config, problem.path, problem.reason)


def _claims(survey: AnalysisContext) -> Iterator[tuple[HostPlace, Claim]]:
    mesh, picture = survey.mesh, survey.picture
    for config in survey.of("ServiceEntry"):
        to = export_namespaces(config.spec.export_to, mesh.default_service_export_to, config.namespace)
        for host in dict.fromkeys(config.spec.hosts):
            yield HostPlace("", picture.registry_host(host)), Claim(config.key, to, config.created)
    for config in survey.of("VirtualService"):
        to = export_namespaces(config.spec.export_to, mesh.default_virtual_service_export_to, config.namespace)
        for name in config.spec.gateways or [MESH_GATEWAY]:
            gateway = full_gateway(name, config.namespace, picture.domain)
            for host in dict.fromkeys(picture.full_host(h, config.namespace) for h in config.spec.hosts):
                yield HostPlace(gateway, host), Claim(config.key, to, config.created)


def _order(survey: AnalysisContext, place: HostPlace, claims: Sequence[Claim]) -> Order:
    known = tuple(HostClaim(*each) for each in survey.picture.owners.get(place, ()))
    return succession(known, claims, claims, datetime.now(UTC))


def _before(claim: Claim, order: Order) -> HostClaim | None:
    """The claim of another namespace that goes before an object's towards some clients."""
    mine = (each for each in order if each.namespace == claim.key.namespace and each.to in claim.to)
    return next((first for each in mine for first in rivals(each, order) if first.left is None), None)


def _message(config: Config, place: HostPlace, owner: ConfigKey, *, is_known: bool) -> AnalysisMessage:
    effect = "the owner's routes come first" if place.gateway else "only clients in its namespace get this service"
    why = "had it first" if is_known else "is first by age or name"
    arguments = (place.host, place_text(place), owner.namespace, owner, why, effect)
    return found(codes.HOST_OF_OTHERS, config, "spec.hosts", *arguments)
