"""Messages of analysis at Istio's objects, as istiod writes them with ``PILOT_ENABLE_ANALYSIS``.

Source of the form: Istio, ``analysis.v1alpha1.AnalysisMessageBase``: the code, the level, and where it is explained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import trio

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.analyze import analyze_picture, problems_by_object
from mesh_pilot.explain.analysis.findings import Level, MessageType
from mesh_pilot.explain.analysis.input import AnalysisInput, picture_of
from mesh_pilot.istio.kinds import ISTIO_KINDS
from mesh_pilot.kubernetes.status.live import Json, LiveObjects
from mesh_pilot.kubernetes.status.writer import StatusWriter
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Rejected
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.replicas.election.base import Term
from mesh_pilot.world import World

MESSAGES = "messages"
"""The part of a status that has them."""

ISTIO_PAGES = "https://istio.io/latest/docs/reference/config/analysis"

Messages = dict[ConfigKey, list[Json]]


class MessageReports:
    """Analyses the World now and then, and has the messages written. State: the revision that was analysed last."""

    def __init__(
        self,
        world: World,
        live: LiveObjects,
        writer: StatusWriter,
        proxies: Callable[[], Iterable[Proxy] | None],
        interval: float,
    ) -> None:
        """``proxies``: those that are connected; None if not all are known."""
        self._world = world
        self._live = live
        self._writer = writer
        self._proxies = proxies
        self._interval = interval

    async def run(self, term: Term) -> None:
        """Analyse while this replica leads."""
        analysed = -1
        said: set[ConfigKey] = set()
        while True:
            if self._world.revision != analysed and not self._world.unsynced():
                analysed = self._world.revision
                found = await self._analyse()
                before = {key for key in self._live if _has_messages(self._live, key)}
                for key in said | before | found.keys():
                    messages = {"validationMessages": found.get(key, [])}
                    self._writer.want(key, MESSAGES, messages if key in self._live else None)
                said = {key for key in said | found.keys() if key in self._live}
            await trio.sleep(self._interval)

    async def _analyse(self) -> Messages:
        standing = [each for some in await in_turns(problems_by_object(self._world)) for each in some]
        picture = picture_of(self._world, self._proxies(), standing=tuple(standing))
        found = await trio.to_thread.run_sync(messages_of, picture, abandon_on_cancel=True)
        return {key: messages for key, messages in found.items() if key in self._live}


def messages_of(picture: AnalysisInput) -> Messages:
    """The messages about each of Istio's objects, the heaviest first, each code once; in any thread."""
    said = [(message.config.key, message.type) for message in analyze_picture(picture)]
    found: Messages = {}
    for key, about in (*_of_refused(picture.rejected), *said):
        shown = shown_message(about)
        if key.kind in ISTIO_KINDS and shown not in found.setdefault(key, []):
            found[key].append(shown)
    return found


def shown_message(found: MessageType) -> Json:
    """A message as it is in a status."""
    is_istio = found.code.startswith("IST")
    page = f"{ISTIO_PAGES}/{found.code.lower()}/" if is_istio else found.doc
    return {"type": {"name": found.name, "code": found.code}, "level": _LEVELS[found.level], "documentationUrl": page}


_LEVELS = {Level.ERROR: "ERROR", Level.WARNING: "WARNING", Level.INFO: "INFO"}


def _of_refused(rejected: Sequence[Rejected]) -> Iterable[tuple[ConfigKey, MessageType]]:
    """The messages about objects that are refused."""
    for each in rejected:
        if each.key is not None and each.key[0] == "config":
            yield ConfigKey(*each.key[1:]), codes.SCHEMA_ERROR


def _has_messages(live: LiveObjects, key: ConfigKey) -> bool:
    found = live.get(key)
    return found is not None and bool(found.status.get("validationMessages"))
