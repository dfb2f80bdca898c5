"""The sight of a token: Consul leaves out of its answers what the token may not read, and says nothing.

So an answer with nothing in it may mean that there is nothing, or that the token is blind. A catalog lists Consul's own
servers at least; other questions have a counterpart that is denied outright.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import structlog
import trio

from mesh_pilot.consul.client.api import Answer, ConsulApi
from mesh_pilot.consul.client.client import ConsulDeniedError, ConsulError
from mesh_pilot.consul.client.settings import ConsulSettings

log = structlog.get_logger(scope="sources")

BLIND_SECONDS = 5.0
"""The interval at which a blind token is tried again: a change of its rights wakes no query."""
BLIND_SERVICE_SECONDS = 30.0
"""The same, for each service."""

BLIND = "the Consul token does not see everything"
STALE = "Consul does not hear from the peer; what was imported is kept"

CATALOG = "the catalog"
CONFIGS = "the configs in KV"
PEERING = "the peering"


class Sight:
    """The questions whose answers may lack what is there.

    State: the reason for each, and since when there is any; when the catalog was last looked at, and whether it was
    that of a blind token.
    """

    def __init__(self, source: str, settings: ConsulSettings) -> None:
        self._source = source
        self._settings = settings
        self._reasons: dict[str, str] = {}
        self._since = 0.0
        self._looking = trio.Lock()
        self._looked_at = -math.inf
        self._is_blind = False

    def __repr__(self) -> str:
        return f"<Sight of {self._source}: {self.reason or 'all'}>"

    @property
    def reason(self) -> str:
        """Why something may be missing, with what to do; empty if nothing is."""
        return "; ".join(reason for _, reason in sorted(self._reasons.items()))

    @property
    def seconds(self) -> float:
        """The seconds for which something may have been missing; 0 if nothing is."""
        return trio.current_time() - self._since if self._reasons else 0.0

    def note(self, what: str, reason: str) -> bool:
        """Remember why the answers to a question may lack something; empty: they lack nothing. True if they may."""
        if reason and reason != self._reasons.get(what):
            log.warning(STALE if what == PEERING else BLIND, source=self._source, what=what, reason=reason)
        if not self._reasons:
            self._since = trio.current_time()
        before = self._reasons.pop(what, "")
        if reason:
            self._reasons[what] = reason
        elif before:
            log.info("Consul tells it again", source=self._source, what=what)
        return bool(reason)

    def note_catalog(self, api: ConsulApi, answer: Answer) -> bool:
        """True if a catalog is that of a token that sees nothing."""
        settings = self._settings
        # A namespace, partition or filter of Consul's may leave out its own service.
        can_tell = not (api.filters_catalog or settings.consul_namespace or settings.partition)
        is_blind = can_tell and not answer.data
        reason = "the token sees no service, not even Consul's own: give it service:read and node:read"
        return self.note(CATALOG, reason if is_blind else "")

    async def look(self, api: ConsulApi) -> bool:
        """Ask for the catalog, unless it was asked for just now: True if the token sees nothing or Consul fails."""
        async with self._looking:
            if self._looked_at + BLIND_SECONDS <= trio.current_time():
                try:
                    self._is_blind = self.note_catalog(api, await api.services(0, 0.0))
                except ConsulError:
                    self._is_blind = True
                self._looked_at = trio.current_time()
        return self._is_blind

    async def sees_configs(self, api: ConsulApi, answer: Answer) -> bool:
        """True if the token may read the objects in KV, of which this is the answer."""
        prefix = f"{self._settings.config_prefix.strip('/')}/"
        is_denied = not answer.data and await _is_denied(api.check_key, prefix)
        return not self.note(CONFIGS, f"the token may not read {prefix} in KV: give it key:read" if is_denied else "")

    async def sees_intentions(self, api: ConsulApi, what: str, service: str) -> bool:
        """True if the token may read the intentions about a service."""
        is_denied = await _is_denied(api.check_intentions, service)
        reason = f"the token may not read the intentions about {service}: give it intentions:read"
        return not self.note(what, reason if is_denied else "")


async def _is_denied(ask: Callable[[str], Awaitable[object]], name: str) -> bool:
    try:
        await ask(name)
    except ConsulDeniedError:
        return True
    except ConsulError:
        return False
    return False
