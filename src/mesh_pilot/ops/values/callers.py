"""``/debug/authenticationz``: who was let in by which evidence, and the latest refusals. Holds no evidence itself."""

from __future__ import annotations

from mesh_pilot.model.json import Json
from mesh_pilot.ops.plane.state import PlaneState


def page(state: PlaneState) -> Json:
    """Counts, and the latest refusals of callers and signing requests, the newest first."""
    authentication = state.callers.authentication
    return {
        "accepted": dict(sorted(authentication.accepted.items())),
        "refused": [
            {"authenticator": name, "reason": reason, "count": count}
            for (name, reason), count in sorted(authentication.refused.items())
        ],
        "latest": [
            {
                "at": denial.at.isoformat(timespec="seconds"),
                "peer": denial.peer,
                "authenticator": denial.authenticator,
                "reason": denial.reason,
                "text": denial.text,
            }
            for denial in reversed(authentication.denials.latest)
        ],
    }
