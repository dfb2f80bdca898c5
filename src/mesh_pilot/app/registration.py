"""Auto-registration, built from the settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mesh_pilot.app.identity import trust_domains
from mesh_pilot.app.settings import Settings
from mesh_pilot.replicas.election.base import Election
from mesh_pilot.replicas.registration.admission import AdmissionRules
from mesh_pilot.replicas.registration.registrar import Message, Registrar, WorkloadAdmission
from mesh_pilot.world import World

ANSWER_SECONDS = 5.0
"""The time for a request to Consul."""


def registrar_of(settings: Settings, election: Election) -> Registrar:
    """The registrar; where replicas elect a leader in Consul, they share its records there."""
    own, elected = settings.registration, settings.election
    if elected is None:
        return Registrar(election, grace_seconds=own.grace_seconds)
    from mesh_pilot.consul.client.kv import ConsulKv
    from mesh_pilot.consul.election.lock import ConsulElectionSettings
    from mesh_pilot.consul.stores.registrations import ConsulRecords

    if not isinstance(elected, ConsulElectionSettings):
        return Registrar(election, grace_seconds=own.grace_seconds)
    kv = ConsulKv(elected.agent, elected.datacenter, ANSWER_SECONDS)
    store = ConsulRecords(kv, own.key.strip("/"), elected.ttl_seconds)
    return Registrar(election, grace_seconds=own.grace_seconds, store=store)


def admission_of(settings: Settings, world: World, tell: Callable[[Message], None]) -> WorkloadAdmission:
    """The admission of workloads at a worker, the first one or another."""
    rules = AdmissionRules(any_address=settings.registration.any_address, trust_local=settings.trust_local)
    return WorkloadAdmission(world, partial(trust_domains, world), rules, tell)
