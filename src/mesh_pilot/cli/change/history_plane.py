"""The history as a control plane tells it (``/api/v1/history``), in the values that the state folder gives."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs
import msgspec

from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.model.history import RevisionNack, RevisionTraffic
from mesh_pilot.safety.state.reader import ChangeRecord, RevisionRecord

MOST = 1000
"""Revisions in one answer."""


@attrs.frozen
class PlaneHistory:
    """The revisions that a control plane tells of. Every method raises ClickException, in one line."""

    plane: PlaneClient

    def revisions(
        self, *, limit: int, since: datetime | None, object_name: str, proxy: str
    ) -> tuple[list[RevisionRecord], bool]:
        """The revisions, the newest first, and whether there are any at all."""
        query = {
            "since": since.isoformat() if since is not None else None,
            "object": object_name or None,
            "proxy": proxy or None,
            "trials": "true",
        }
        found: list[RevisionRecord] = []
        has_any = False
        while len(found) < limit:
            before = found[-1].number if found else None
            wanted = min(MOST, limit - len(found))
            answer = self.plane.get("/history", limit=wanted, before=before, **query)
            found += map(_record, answer["items"])
            has_any = bool(answer["latest"])
            if len(answer["items"]) < wanted:
                break
        return found, has_any

    def revision(self, number: int) -> tuple[RevisionRecord, list[ChangeRecord], list[RevisionNack]]:
        """A revision, the objects that it changed, and what proxies refused."""
        found = self.plane.get(f"/history/{number}")
        changes = [
            ChangeRecord(each["source"], ("config", each["object"]), each["action"], each["cause"])
            for each in found["changes"]
        ]
        return _record(found), changes, [_nack(each) for each in found["nacks"]]

    def differences(self, older: int, newer: int | None) -> dict[str, Any]:
        """The objects in which two revisions differ, as the API tells them."""
        found: dict[str, Any] = self.plane.get(f"/history/{older}/diff", to=newer)
        return found


def _record(found: dict[str, Any]) -> RevisionRecord:
    return RevisionRecord(
        number=found["revision"],
        at=datetime.fromisoformat(found["at"]),
        causes=tuple(found["causes"]),
        more_causes=found["more_causes"],
        objects=found["objects"],
        proxies=found["proxies"],
        waiting=found["waiting"],
        bytes=found["bytes"],
        acked_seconds=found["acked_seconds"],
        nacked=found.get("nack_count", found["nacks"]),
        is_over=found["is_over"],
        traffic=_traffic(found.get("traffic")),
    )


def _traffic(found: object) -> RevisionTraffic | None:
    """None also for what a control plane of another version says."""
    try:
        return msgspec.convert(found, RevisionTraffic | None)
    except msgspec.ValidationError:
        return None


def _nack(found: dict[str, Any]) -> RevisionNack:
    lists = {name: tuple(found[name]) for name in ("names", "configs")}
    return RevisionNack(**{**found, **lists, "at": datetime.fromisoformat(found["at"])})
