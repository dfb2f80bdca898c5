"""The service in the local Consul agent: registered, kept alive by a TTL check, taken out before the agent stops.

The check says whether callers should come: Envoy is ready, probes succeed, and the agent is not draining. A service
that somebody else registers gets the check only, and keeps it. When this agent dies without a word the service stays,
and the check turns critical after ``TTL_SECONDS``; no service is ever removed for being critical.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
import structlog
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.health.monitor import DRAINING, SETTLE_SECONDS
from mesh_pilot.agent.registration.definition import (
    COMPARED_KEYS,
    TTL_SECONDS,
    check_id,
    differs,
    service_definition,
    ttl_check,
)
from mesh_pilot.agent.registration.local_agent import ConsulAway, LocalConsulAgent, RegistrationError, UnknownToConsul
from mesh_pilot.agent.relay.subscriptions import ApplicationHealth
from mesh_pilot.agent.settings import AgentSettings

log = structlog.get_logger(scope="agent")

REFRESH_SECONDS = TTL_SECONDS / 3
VERIFY_SECONDS = 30.0
"""Time between two looks whether Consul still has the service as we want it."""
DRAIN_SECONDS = 5.0
"""The longest wait until Consul's catalog shows that callers should go elsewhere."""
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.25, 5.0

PASSING, CRITICAL = "passing", "critical"


@attrs.define
class RegistrationStatistics:
    """The state of the registration, and counters of the calls for it."""

    service_id: str
    is_registered: bool = False
    """The service, or our check of it, is in the Consul agent as far as we know."""
    status: str = ""
    """The status of our check, as last accepted by Consul."""
    reason: str = ""
    registrations_total: int = 0
    updates_total: int = 0
    failures_total: int = 0
    problem: str = ""
    """The error of the last call; empty if it succeeded."""
    updated: datetime | None = None


class ConsulRegistration:
    """Keeps the service there while ``run`` runs. ``drain`` and ``deregister`` may be called while it does."""

    def __init__(
        self, settings: AgentSettings, health: Observable[ApplicationHealth | None], ready: Observable[bool]
    ) -> None:
        """``health``: of the application; ``ready``: of Envoy. Raises AgentError for an invalid definition."""
        consul = settings.consul
        self._definition: dict[str, Any] | None = None
        if consul.service is not None:
            self._definition = service_definition(consul.service, settings.node)
        self._id: str = self._definition["ID"] if self._definition else consul.service_id
        self._ip = settings.node.ip
        self._agent = LocalConsulAgent(consul)
        self._health, self._ready = health, ready
        self._wake = trio.Event()
        self._turn = trio.Lock()
        self._is_draining = self._is_over = self._is_away = False
        self._was_passing: bool | None = None
        """Our check was passing when we started: it stays so until probes have decided."""
        self._verified = float("-inf")
        self._may_differ = any(value for key, value in (self._definition or {}).items() if key not in COMPARED_KEYS)
        """The definition has fields that are not compared with what is registered: Consul gets them again once."""
        self._known = RegistrationStatistics(self._id)

    def statistics(self) -> RegistrationStatistics:
        return attrs.evolve(self._known)

    async def run(self) -> None:
        """Register and renew, forever. Cancelled, it leaves the service as it is."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._health.follow, self._wake_up)
            nursery.start_soon(self._ready.follow, self._wake_up)
            retry = _FIRST_RETRY_SECONDS
            while True:
                self._wake = trio.Event()
                succeeded = await self._sync()
                pause = REFRESH_SECONDS if succeeded else random.uniform(retry / 2, retry)
                retry = _FIRST_RETRY_SECONDS if succeeded else min(2 * retry, _LAST_RETRY_SECONDS)
                if not succeeded:
                    await trio.sleep(pause)
                    continue
                with trio.move_on_after(pause):
                    await self._wake.wait()

    async def drain(self) -> None:
        """Make the check critical, and wait until callers are likely to know; a few seconds at most."""
        self._is_draining = True
        if self._was_passing is None:
            return  # nothing was announced
        with trio.move_on_after(DRAIN_SECONDS) as waiting:
            succeeded = await self._sync()
            while not succeeded:
                await trio.sleep(_FIRST_RETRY_SECONDS)
                succeeded = await self._sync()
            await self._until_gone()
        if waiting.cancelled_caught:
            effect = "callers may still come; the drain continues"
            log.warning("consul not told of the drain", service=self._id, reason=self._known.problem, effect=effect)
            return
        await trio.sleep(SETTLE_SECONDS)

    async def deregister(self) -> None:
        """Remove our service for good; one that somebody else registered stays, with our check as it is."""
        self._is_over = True
        if self._definition is None:
            return
        with trio.move_on_after(DRAIN_SECONDS) as waiting:
            async with self._turn:
                try:
                    await self._agent.deregister(self._id)
                    self._known.is_registered = False
                    log.info("consul service deregistered", service=self._id)
                except UnknownToConsul:
                    self._known.is_registered = False
                except RegistrationError as error:
                    self._not_deregistered(str(error))
        if waiting.cancelled_caught:
            self._not_deregistered(f"Consul's agent does not answer within {DRAIN_SECONDS:g} s")

    def _not_deregistered(self, reason: str) -> None:
        effect = "it stays in Consul, critical"
        log.warning("consul service not deregistered", service=self._id, reason=reason, effect=effect)

    # -- one round

    async def _sync(self) -> bool:
        """Have Consul know the service and its state; false if that failed."""
        async with self._turn:
            if self._is_over:
                return True
            try:
                if self._was_passing is None:
                    self._was_passing = await self._agent.check_status(check_id(self._id)) == PASSING
                status, reason = self._wanted()
                if trio.current_time() >= self._verified + VERIFY_SECONDS:
                    await self._verify(status)
                try:
                    await self._agent.update_check(check_id(self._id), status, reason)
                except UnknownToConsul:
                    log.info("consul lost the registration", service=self._id, effect="it is registered again")
                    self._known.is_registered = False
                    await self._verify(status)
                    await self._agent.update_check(check_id(self._id), status, reason)
            except RegistrationError as error:
                self._failed(error)
                return False
            known = self._known
            if known.problem:
                log.info("consul takes the registration again", service=self._id)
            if status != known.status:
                log.info("consul check set", service=self._id, status=status, reason=reason)
            self._is_away = False
            known.status, known.reason, known.problem = status, reason, ""
            known.updates_total += 1
            known.updated = datetime.now(UTC)
            return True

    def _wanted(self) -> tuple[str, str]:
        """The status of our check, and why."""
        health = self._health.value
        if self._is_draining:
            return CRITICAL, DRAINING.reason
        if not self._ready.value:
            return CRITICAL, "Envoy is not ready"
        if health is None:
            if self._was_passing:
                return PASSING, "as before the agent started; no probe has decided yet"
            return CRITICAL, "no probe has decided yet"
        if not health.is_healthy:
            return CRITICAL, health.reason
        return PASSING, "Envoy is ready, and so is the application"

    async def _verify(self, status: str) -> None:
        """Register what Consul does not have, or has otherwise. Raises RegistrationError."""
        if self._definition is None:
            await self._add_check(status)
        else:
            await self._register(self._definition, status)
        self._known.is_registered = True
        self._verified = trio.current_time()

    async def _register(self, wanted: Mapping[str, Any], status: str) -> None:
        try:
            if different := differs(await self._agent.service(self._id), wanted):
                why = f"{different} differs"
            elif not await self._agent.check_status(check_id(self._id)):
                why = "our check is missing"
            elif self._may_differ:
                why = "checks and further fields may differ"
            else:
                return
        except UnknownToConsul:
            why = "it is not there"
        checks = [*wanted["Checks"], ttl_check(self._id, status)]
        await self._agent.register({**wanted, "Checks": checks})
        self._may_differ = False
        self._known.registrations_total += 1
        log.info("consul service registered", service=self._id, name=wanted["Name"], because=why)

    async def _add_check(self, status: str) -> None:
        try:
            await self._agent.service(self._id)
        except UnknownToConsul:
            raise RegistrationError(
                f"no service {self._id} is registered at the Consul agent of this machine; "
                "register it, or have the agent do it by a definition in place of its id"
            ) from None
        if await self._agent.check_status(check_id(self._id)):
            return
        definition = ttl_check(self._id, status)
        definition["ID"] = definition.pop("CheckID")
        await self._agent.register_check({**definition, "ServiceID": self._id})
        self._known.registrations_total += 1
        log.info("consul check added", service=self._id, check=definition["ID"])

    def _failed(self, error: RegistrationError) -> None:
        self._known.failures_total += 1
        self._verified = float("-inf")
        problem, was_away = str(error), self._is_away
        self._is_away = isinstance(error, ConsulAway)
        if problem != self._known.problem and not (self._is_away and was_away):
            effect = "it is tried again; in Consul stays what is there"
            log.warning("consul registration failed", service=self._id, reason=problem, effect=effect)
        self._known.problem = problem

    async def _until_gone(self) -> None:
        """Wait until the catalog has our instance among the healthy ones no more. An error ends the wait."""
        try:
            ours = await self._agent.service(self._id)
            name, index = str(ours.get("Service", "")), ""
            address = ours.get("Address") or self._ip
            while True:
                healthy, index = await self._agent.passing(name, index, DRAIN_SECONDS)
                if not any(_is_ours(entry, self._id, address) for entry in healthy):
                    return
                if not index:
                    await trio.sleep(_FIRST_RETRY_SECONDS)
        except RegistrationError as error:
            log.info("consul catalog not seen", service=self._id, reason=str(error))

    def _wake_up(self, _: object) -> None:
        self._wake.set()


def _is_ours(entry: object, service_id: str, address: str) -> bool:
    """True if an entry of the health endpoint is the instance with this id and address."""
    if not isinstance(entry, Mapping):
        return False
    service, node = entry.get("Service") or {}, entry.get("Node") or {}
    return service.get("ID") == service_id and (service.get("Address") or node.get("Address")) == address
