"""Metrics of callers and certificates: Istio's ``citadel_*`` and ``pilot_sds_*``, and counts by reason.

Source of the names: Istio, ``security/pkg/server/ca/monitoring.go`` and ``pilot/pkg/xds/monitoring.go``.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from mesh_pilot.ops.state import PlaneState


def caller_metrics(state: PlaneState) -> Iterator[Metric]:
    """All of them."""
    own = state.callers.certificates.statistics()
    for name, text, value in (
        ("citadel_server_csr_count", "Certificate signing requests received", own.requests),
        ("citadel_server_authentication_failure_count", "CSRs of callers unknown", own.authentication_failures),
        ("citadel_server_csr_parsing_err_count", "CSRs that could not be read", own.parsing_errors),
        ("citadel_server_id_extraction_err_count", "CSRs that claim what is not the caller's", own.claim_errors),
        ("citadel_server_success_cert_issuance_count", "CSRs signed", own.issued),
    ):
        yield _counter(name, text, {(): value})
    yield _counter(
        "citadel_server_csr_sign_err_count",
        "CSRs that the signer did not sign",
        {(("error", reason),): count for reason, count in own.sign_errors.items()},
    )
    failed = state.callers.issuer.statistics().failed
    yield _counter("pilot_sds_certificate_errors_total", "Certificates for proxies that were not signed", {(): failed})
    authentication = state.callers.authentication
    yield _counter(
        "mesh_pilot_accepted_callers",
        "Calls whose caller was proven, by authenticator",
        {(("authenticator", name),): count for name, count in sorted(authentication.accepted.items())},
    )
    yield _counter(
        "mesh_pilot_refused_callers",
        "Evidence, node claims and CSRs that were refused, by reason",
        {
            (("authenticator", name), ("reason", reason)): count
            for (name, reason), count in sorted(authentication.refused.items())
        },
    )


def _counter(name: str, text: str, values: dict[tuple[tuple[str, str], ...], float]) -> Metric:
    metric = Metric(name, text, "unknown")
    for labels, value in values.items():
        metric.add_sample(name, dict(labels), value)
    return metric
