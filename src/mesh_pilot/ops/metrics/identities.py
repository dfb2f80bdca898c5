"""Metrics of callers, certificates, registrations and replicas: Istio's ``citadel_*``, ``pilot_sds_*`` and
``auto_registration_*``, and counts by reason.

Source of the names: Istio, ``security/pkg/server/ca/monitoring.go``, ``pilot/pkg/xds/monitoring.go``,
``pilot/pkg/autoregistration/controller.go``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from mesh_pilot.identity.authority.rotation import RotationPhase
from mesh_pilot.ops.metrics.samples import metric, one, several
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.authority import rollout


def callers(state: PlaneState) -> Iterator[Metric]:
    """Callers that were let in or not, and their certificate requests."""
    own = state.callers.certificates.statistics()
    for name, text, value in (
        ("citadel_server_csr_count", "Certificate signing requests received", own.requests),
        ("citadel_server_authentication_failure_count", "CSRs of callers unknown", own.authentication_failures),
        ("citadel_server_csr_parsing_err_count", "CSRs that could not be read", own.parsing_errors),
        ("citadel_server_id_extraction_err_count", "CSRs that claim what is not the caller's", own.claim_errors),
        ("citadel_server_success_cert_issuance_count", "CSRs signed", own.issued),
    ):
        yield one(name, text, "counter", value)
    text = "CSRs that the signer did not sign"
    errors = {"signer": 0, "timeout": 0, **own.sign_errors}
    yield several("citadel_server_csr_sign_err_count", text, "counter", "error", errors)
    failed = state.callers.issuer.statistics().failed
    yield one("pilot_sds_certificate_errors_total", "Certificates for proxies that were not signed", "counter", failed)
    authentication = state.callers.authentication
    text = "Calls whose caller was proven, by authenticator"
    yield several("mesh_pilot_accepted_callers", text, "counter", "authenticator", authentication.accepted)
    text = "Evidence, node claims and CSRs that were refused, by reason"
    refused = metric("mesh_pilot_refused_callers", text, "counter")
    for (name, reason), count in sorted(authentication.refused.items()):
        refused.add_sample(refused.name, {"authenticator": name, "reason": reason}, count)
    yield refused


def registrations(state: PlaneState) -> Iterator[Metric]:
    """Under istiod's names where it has them."""
    if state.registrations is None:
        return
    own = state.registrations.statistics()
    for name, what, count in (
        ("success", "Workloads registered", own.registered),
        ("updates", "Registered workloads that came back or changed", own.updated),
        ("unregister", "Registered workloads that disconnected", own.unregistered),
        ("deletes", "Entries of registered workloads deleted", own.deleted),
        ("errors", "Registrations refused, and writes that failed", own.errors),
    ):
        yield one(f"auto_registration_{name}_total", what, "counter", count)
    yield one("mesh_pilot_auto_registered_entries", "Entries of registered workloads", "gauge", own.entries)
    yield one("mesh_pilot_unhealthy_workloads", "Workloads reported ill", "gauge", own.unhealthy)
    reports = metric("mesh_pilot_health_reports", "Reports of workloads' health", "counter")
    for is_healthy in (False, True):
        count = own.reports.get(is_healthy, 0)
        reports.add_sample(reports.name, {"healthy": str(is_healthy).lower()}, count)
    yield reports


def authority(state: PlaneState) -> Iterator[Metric]:
    """The CA, under the names of Istio's Citadel."""
    if state.callers.authority is None:
        return
    own = state.callers.authority.statistics()
    for name, what, end in (
        ("root_cert", "the root", own.root_not_after),
        ("cert_chain", "the first certificate of the CA's chain", own.chain_not_after),
    ):
        stamp = end.timestamp()
        yield one(f"citadel_server_{name}_expiry_timestamp", f"End of {what}, Unix time", "gauge", stamp)
        left = stamp - time.time()
        yield one(f"citadel_server_{name}_expiry_seconds", f"Seconds until {what} ends", "gauge", left)
    phases = metric("mesh_pilot_ca_rotation", "Phase of the root's rotation", "gauge")
    for phase in RotationPhase:
        phases.add_sample(phases.name, {"phase": phase.value}, phase is own.phase)
    yield phases
    found = rollout(state)
    proxies = metric("mesh_pilot_ca_proxies", "Proxies with secrets of the mesh, by what they have", "gauge")
    having = {"any": found.proxies, "roots": found.with_roots, "certificate": found.with_certificate}
    for has, count in having.items():
        proxies.add_sample(proxies.name, {"has": has}, count)
    yield proxies
    yield one("mesh_pilot_ca_refused_files", "1 if the CA's files cannot be used", "gauge", bool(own.problem))


def signed(state: PlaneState) -> Iterator[Metric]:
    """The CA's work."""
    if state.callers.authority is not None:
        count = state.callers.authority.statistics().signed
        yield one("mesh_pilot_ca_signed", "Certificates signed since the start", "counter", count)


def signer(state: PlaneState) -> Iterator[Metric]:
    """The CA elsewhere that signs."""
    own = state.signer.statistics() if state.signer is not None else None
    yield one(
        "mesh_pilot_signer_signed", "Certificates that a CA elsewhere signed", "counter", own.signed if own else 0
    )
    failed = own.failed if own else {}
    yield several("mesh_pilot_signer_errors", "Requests to that CA that failed, by reason", "counter", "reason", failed)


def trust(state: PlaneState) -> Iterator[Metric]:
    """Roots of the mesh and of others."""
    store = state.trust
    bundles = {store.domains.own: store.own(), **store.foreign()}
    roots = {domain: len(bundle.roots) for domain, bundle in bundles.items()}
    yield several("mesh_pilot_trust_roots", "Roots that vouch for a trust domain", "gauge", "trust_domain", roots)


def election(state: PlaneState) -> Iterator[Metric]:
    """The replica that does what must be done once."""
    own = state.election.statistics()
    yield one("mesh_pilot_leader", "1 if this replica leads", "gauge", own.leads)
    yield one("mesh_pilot_leader_changes_total", "Changes of the leader that were seen", "counter", own.changes)
