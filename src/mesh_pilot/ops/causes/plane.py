"""The control plane itself: what it cannot make, what it waits for, and certificates that end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import attrs

from mesh_pilot.identity.trust.validity import ValidityPeriod
from mesh_pilot.ops.causes.cause import Cause, CauseKind, CauseReach, CauseSubject, assessed, reach
from mesh_pilot.ops.causes.proxies import AssessedProxy
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Gravity
from mesh_pilot.ops.values.certificates import certificate_of

LAST_PART = 0.1
"""The last part of its life in which a certificate that was not replaced is worth a word: agents and we replace them
after half to three quarters."""

UNKNOWN_LIFE = timedelta(minutes=10)
"""The same for one of which only the end is known."""

TO_PLANE = "plane"
"""The kind of what is remembered as seen first."""


@attrs.frozen
class NextCertificate:
    """The certificate of a proxy that ends first."""

    proxy: str
    expires: datetime


def plane_causes(state: PlaneState, proxies: int) -> Iterator[Cause]:
    """The causes about the plane. ``proxies``: the number of those that are connected."""
    waiting = state.not_ready()
    lines: list[str] = []
    if state.callers.authority is not None:
        lines += state.callers.authority.warnings()
    lines += [f"{name} {fault}" for name, fault in state.callers.validity.faults().items()]
    since = state.first_seen.look(TO_PLANE, [*waiting, *lines])
    for source, why in waiting.items():
        yield Cause(
            kind=CauseKind.PLANE,
            subject=CauseSubject("Plane", "", source),
            assessment=assessed("not ready", Gravity.ERROR, f"proxies are not let in: {why}", since[source]),
            touches=CauseReach(0, None, "proxies", ()),
            command="mesh-pilot admin status",
        )
    for line in lines:
        yield Cause(
            kind=CauseKind.CERTIFICATE,
            subject=CauseSubject("Certificate", "", "ca"),
            assessment=assessed("ending", Gravity.WARNING, line, since[line]),
            touches=CauseReach(0, None, "proxies", ()),
            command="mesh-pilot ca status",
        )
    for failing in state.failures():
        failure = failing.failure
        yield Cause(
            kind=CauseKind.PLANE,
            subject=CauseSubject("Plane", "", f"{failure.kind} {failure.name}"),
            assessment=assessed("failing", Gravity.ERROR, f"{failure}: {failure.error}", failure.since),
            touches=reach("proxies", failing.proxies, proxies),
            where=", ".join(failure.configs[:3]),
            command="mesh-pilot bug-report",
            more="an outage of somebody else" if failure.is_expected else "an internal error of mesh-pilot",
        )


def ending_certificates(
    state: PlaneState, every: Sequence[AssessedProxy]
) -> tuple[NextCertificate | None, list[Cause]]:
    """The certificate of a connected proxy that ends first, and a cause if any should have been replaced by now."""
    now = state.callers.validity.now()
    first: NextCertificate | None = None
    late: dict[str, datetime] = {}
    for each in every:
        life = certificate_of(state, each.proxy, each.connection.certificate_end)
        if life is None:
            continue
        if first is None or life.ends < first.expires:
            first = NextCertificate(each.proxy.name, life.ends)
        if _is_late(life, now):
            late[each.proxy.name] = life.ends
    if not late:
        return first, []
    name = min(late, key=lambda each: late[each])
    ends = late[name]
    verb = "ended" if ends <= now else "ends"
    cause = Cause(
        kind=CauseKind.CERTIFICATE,
        subject=CauseSubject("Proxy", name.partition(".")[2], name),
        assessment=assessed(
            "ending", Gravity.ERROR if ends <= now else Gravity.WARNING, f"the certificate {verb} at {ends:%F %T} UTC"
        ),
        touches=reach("proxies", late, len({each.proxy.name for each in every})),
        command=f"mesh-pilot proxy-config secret {shlex.quote(name)}",
        more="it should have been replaced by now: look at the agent's log",
    )
    return first, [cause]


def _is_late(life: ValidityPeriod, now: datetime) -> bool:
    whole = life.ends - life.begins
    return life.ends - now < (whole * LAST_PART if whole else UNKNOWN_LIFE)


def root_end(state: PlaneState) -> datetime | None:
    """The end of the mesh's root; None if it is not ours."""
    authority = state.callers.authority
    return authority.statistics().root_not_after if authority is not None else None
