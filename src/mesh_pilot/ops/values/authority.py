"""The CA on ``/debug/ca`` and in ``/ready``: how far a rotation of the root has come, also at the connected proxies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import attrs
from cryptography import x509

from mesh_pilot.identity.authority.authority import Authority, fingerprint
from mesh_pilot.identity.authority.material import pem
from mesh_pilot.identity.authority.rotation import NEXT_STEP, RotationPhase, begun_at
from mesh_pilot.mesh.proxy.keys import has_agent_secrets, has_our_agent
from mesh_pilot.model.json import Json
from mesh_pilot.model.resource import IDENTITY_SECRET, PROXY_CONFIG, SECRET, TRUST_SECRET, Resource
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.replicas.workers.questions import Rollout

MAX_NAMES = 10
"""Clients that a line names."""


def rollout(state: PlaneState) -> Rollout:
    """The state of the connected proxies that get their certificate or roots over SDS, or by their agents."""
    if state.callers.authority is None:
        return Rollout()
    material = state.callers.authority.material
    roots = [pem(root) for root in material.roots]
    issuer = pem(material.issuer.certificate)
    proxies = with_roots = with_certificate = 0
    before = set(_before(state, begun_at(material)))
    for proxy, held in state.xds.status.accepted(SECRET):
        if proxy.identity and not has_agent_secrets(proxy):
            proxies += 1
            trusted, own = held.get(TRUST_SECRET), held.get(IDENTITY_SECRET)
            # Secrets have their PEM inline.
            with_roots += trusted is not None and all(root in trusted.body for root in roots)
            with_certificate += own is not None and issuer in own.body
    for held in _held_by_agents(state):
        proxies += 1
        with_roots += any(all(root in resource.body for root in roots) for resource in held.values())
        # The certificates that they had signed count by their end (``old_in_force_until``).
        with_certificate += 1
    for other in state.other_states():
        proxies += other.rollout.proxies
        with_roots += other.rollout.with_roots
        with_certificate += other.rollout.with_certificate
        before |= set(other.rollout.before_rotation)
    return Rollout(proxies, with_roots, with_certificate, tuple(sorted(before)))


def _before(state: PlaneState, began: datetime | None) -> Iterator[str]:
    """Clients whose connection is older than the rotation, and whose roots no agent of ours follows."""
    if began is None:
        return
    for connection in state.xds.status.streams():
        proxy, since = connection.proxy, connection.tls_since
        if proxy is not None and since is not None and since < began and not proxy.agent and not has_our_agent(proxy):
            yield proxy.name


def _held_by_agents(state: PlaneState) -> Iterator[Mapping[str, Resource]]:
    """The resources with roots that agents hold on behalf of their Envoys: ours the secret, Istio's the ProxyConfig."""
    for agent, held in state.xds.status.accepted(SECRET, agents=True):
        if agent.identity:
            yield held
    for proxy, held in state.xds.status.accepted(PROXY_CONFIG):
        if proxy.identity and has_agent_secrets(proxy):
            yield held


def pending(authority: Authority, found: Rollout) -> tuple[str, ...]:
    """Reasons why the next step of a rotation should wait."""
    own = authority.statistics()
    lines = []
    if own.phase is not RotationPhase.STEADY and found.with_roots < found.proxies:
        lines.append(f"{found.proxies - found.with_roots} of {found.proxies} proxies have not accepted both roots yet")
    if own.phase is RotationPhase.SWITCHED:
        if found.with_certificate < found.proxies:
            count = found.proxies - found.with_certificate
            lines.append(f"{count} of {found.proxies} proxies have no certificate of the new root yet")
        if own.old_in_force_until is not None:
            lines.append(f"certificates of the old root are in force until {own.old_in_force_until:%F %T} UTC")
        if found.before_rotation:
            lines.append(f"connected since before the rotation with a root from a file: {few(found.before_rotation)}")
    return tuple(lines)


def few(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def ready_lines(state: PlaneState) -> Iterator[str]:
    """Lines of ``/ready``: a rotation under way, and what an operator has to see to."""
    yield from (f"certificate: {name} {fault}" for name, fault in state.callers.validity.faults().items())
    authority = state.callers.authority
    if authority is None:
        return
    phase = authority.statistics().phase
    if phase is not RotationPhase.STEADY:
        reasons = pending(authority, rollout(state))
        step = f"mesh-pilot ca rotate {NEXT_STEP[phase]}"
        then = f"before {step}, wait: {'; '.join(reasons)}" if reasons else f"everybody has followed; next: {step}"
        yield f"ca: the rotation of the root is {phase.value}; {then}"
    for line in authority.warnings():
        yield f"ca: {line}"


def _elsewhere(state: PlaneState) -> Json:
    """A CA elsewhere that signs."""
    if state.signer is None:
        return {"place": "nowhere"}
    own = state.signer.statistics()
    roots = [x509.load_pem_x509_certificate(root) for root in state.trust.own().roots]
    return {
        "place": state.signer.ca.place,
        "signed": own.signed,
        "roots": [_shown(root) | {"pem": pem(root).decode()} for root in roots],
        "warnings": [own.trouble] if own.trouble else [],
    }


def page(state: PlaneState) -> Json:
    """``/debug/ca``: no keys."""
    authority = state.callers.authority
    if authority is None:
        return _elsewhere(state)
    own, found, material = authority.statistics(), rollout(state), authority.material
    return {
        "place": authority.place,
        "phase": own.phase.value,
        "pending": list(pending(authority, found)),
        "proxies": attrs.asdict(found),
        "signed": own.signed,
        "signing": _shown(material.issuer.certificate),
        "root": _shown(material.root),
        "roots": [_shown(root) | {"pem": pem(root).decode()} for root in material.roots],
        "revocationLists": [crl.issuer.rfc4514_string() for crl in material.crls],
        "oldInForceUntil": own.old_in_force_until.isoformat() if own.old_in_force_until else None,
        "warnings": list(authority.warnings()),
    }


def _shown(certificate: x509.Certificate) -> dict[str, str]:
    return {
        "subject": certificate.subject.rfc4514_string(),
        "serial": f"{certificate.serial_number:x}",
        "sha256": fingerprint(certificate),
        "notBefore": certificate.not_valid_before_utc.isoformat(),
        "notAfter": certificate.not_valid_after_utc.isoformat(),
    }
