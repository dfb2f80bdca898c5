"""Metrics of webhooks, under istiod's names where it has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from mesh_pilot.ops.metrics.samples import histogram, metric, one, several
from mesh_pilot.ops.plane.state import PlaneState

if TYPE_CHECKING:
    from mesh_pilot.kubernetes.webhooks.counts import WebhookState

_OBJECT = ("group", "version", "resource")


def webhooks(state: PlaneState) -> Iterator[Metric]:
    """The metrics of the webhooks; none where they are off."""
    if state.webhooks is None:
        return
    yield from _validation(state.webhooks)
    yield from _injection(state.webhooks)
    yield from _written(state.webhooks)


def _validation(own: WebhookState) -> Iterator[Metric]:
    counts = own.validations()
    yield _labelled("galley_validation_passed", "Objects found good", _OBJECT, counts.passed.items())
    yield _labelled("galley_validation_failed", "Objects refused", (*_OBJECT, "reason"), counts.failed.items())
    text = "Requests to validate that were answered by errors"
    errors = {str(status): count for status, count in counts.http_errors.items()}
    yield several("galley_validation_http_error", text, "counter", "status", errors)


def _injection(own: WebhookState) -> Iterator[Metric]:
    counts = own.injections()
    for name, text, count in (
        ("requests", "Requests to inject a sidecar", counts.requests),
        ("success", "Pods that got one", counts.success),
        ("failure", "Pods that could not get one", counts.failure),
        ("skip", "Pods that get none", counts.skip),
    ):
        yield one(f"sidecar_injection_{name}_total", text, "counter", count)
    yield histogram("sidecar_injection_time_seconds", "Time that an injection takes", counts.seconds)


def _written(own: WebhookState) -> Iterator[Metric]:
    if (bundles := own.bundle_counts()) is not None:
        for name, text, values in (
            ("attempts", "Webhook configurations patched", bundles.attempts),
            ("retries", "Webhook configurations to be tried again", bundles.retries),
        ):
            yield several(f"webhook_patch_{name}_total", text, "counter", "name", values)
        text = "Webhook configurations not patched"
        yield _labelled("webhook_patch_failures_total", text, ("name", "reason"), bundles.failures.items())
        prefix = "galley_validation_config_"
        yield one(f"{prefix}updates", "Configurations of validation updated", "counter", bundles.validation_updates)
        for name, reasons in (
            ("update_error", bundles.validation_update_errors),
            ("load_error", bundles.validation_load_errors),
        ):
            yield several(f"{prefix}{name}", "The same, failed", "counter", "reason", reasons)
    if (roots := own.root_counts()) is not None:
        text = "Namespaces that have the roots in a ConfigMap"
        yield one("mesh_pilot_root_certificate_namespaces", text, "gauge", roots.namespaces)
        yield one("mesh_pilot_root_certificates_written", "Such ConfigMaps written", "counter", roots.written)
        yield one("mesh_pilot_root_certificates_failed", "Writes of them that failed", "counter", roots.failed)


def _labelled(name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], int]]) -> Metric:
    """A counter with a series for each value of several labels."""
    found = metric(name, text, "counter")
    for key, count in sorted(values):
        found.add_sample(name, dict(zip(labels, key, strict=True)), count)
    return found
