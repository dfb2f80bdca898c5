"""Credentials by ACME, assembled: what asks for them, where they are kept, who orders them, when gateways answer.

They are kept where the CA is, so that replicas with a CA in common share them without another setting: in a folder
within the CA's, or in entries below its key in Consul, encrypted like it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import attrs
import trio

from mesh_pilot.app.settings import Settings
from mesh_pilot.app.sources import are_others_synced
from mesh_pilot.base.later import load
from mesh_pilot.identity.authority.folder import FolderStore
from mesh_pilot.identity.authority.store import MaterialStore
from mesh_pilot.model.events import ChallengeAnswer
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.replicas.election.base import Election, Term
from mesh_pilot.sources.acme.source import AcmeSource, StoreOf
from mesh_pilot.sources.acme.stored import FILES, KEYS
from mesh_pilot.sources.acme.wanted import CredentialName, WantedCertificate, wanted_by
from mesh_pilot.world import World

TASK = "certificates by ACME"

FOLDER = "acme"
"""The folder within the CA's, and the part after the CA's key in Consul."""

ANSWER_SECONDS = 20.0
"""The longest wait for gateways. One that does not answer then may be gone, and the issuer asks another."""

LOOK_SECONDS = 0.1

OTHERS_SECONDS = 5.0
"""The time in which other replicas read what the leader has written, and their gateways have it."""

_NAMING = (("mesh",), ("config", "Gateway"), ("secret",))
"""Items that say what is ordered."""


@attrs.frozen
class GatewayCertificates:
    """The credentials that a World asks for; implements ``sources.acme.wanted.CertificateDemand``."""

    world: World

    def wanted_certificates(self) -> Mapping[CredentialName, WantedCertificate]:
        world = self.world
        return wanted_by(world.mesh.peek(()), world.configs_of.peek("Gateway"), self._elsewhere)

    def is_complete(self) -> bool:
        return are_others_synced(self.world)

    def _elsewhere(self, name: CredentialName) -> str:
        namespace, plain = name
        places = (namespace, "") if namespace == self.world.mesh.peek(()).root_namespace else (namespace,)
        for source in self.world.sources():
            if source != AcmeSource.name and any(self.world.item_of(source, ("secret", at, plain)) for at in places):
                return source
        return ""


def acme_source(settings: Settings, world: World, election: Election) -> AcmeSource:
    """The source, whose orders are a task of the leader."""
    source = AcmeSource(GatewayCertificates(world), _stores(settings))

    async def lead(term: Term) -> None:
        await source.lead(term.check)

    election.while_leading(TASK, lead)
    return source


def revised(source: AcmeSource, changed: Iterable[tuple[str, ...]]) -> None:
    """A revision of the World, and what changed in it."""
    if not source.statistics().synced or any(key[: len(named)] == named for key in changed for named in _NAMING):
        source.wake()


def answer_by_gateways(source: AcmeSource, state: PlaneState) -> None:
    """Let orders wait until the gateways of all workers answer the issuer."""
    source.wait_served_by(partial(_answered, state))


async def _answered(state: PlaneState, answers: tuple[ChallengeAnswer, ...]) -> None:
    await load("mesh_pilot.ops.api.delivery")
    from mesh_pilot.ops.api.delivery import unanswered

    with trio.move_on_after(ANSWER_SECONDS):
        while not set(answers) <= set(state.world.challenges.peek(())):
            await state.reducer.wait_published()
        revision = state.xds.status.revisions.latest
        while True:
            if not await unanswered(state, revision):
                break
            await trio.sleep(LOOK_SECONDS)
    if state.election.statistics().kind != "none":
        await trio.sleep(OTHERS_SECONDS)


def _stores(settings: Settings) -> StoreOf | None:
    """The stores of credentials; None: nothing outlives this process."""
    if settings.ca_store is not None:
        from mesh_pilot.consul.identity.ca_store import ConsulStore

        entry = settings.ca_store

        def in_consul(name: str) -> MaterialStore:
            return ConsulStore(attrs.evolve(entry, key=f"{entry.key.strip('/')}/{FOLDER}/{name}"))

        return in_consul
    folder = settings.ca_dir or (settings.state.folder if settings.state is not None else None)
    if folder is None:
        return None
    return lambda name: FolderStore(folder / FOLDER / name, FILES, KEYS)
