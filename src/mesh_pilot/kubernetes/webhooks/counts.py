"""The counters of webhooks, as metrics show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from mesh_pilot.model.histogram import HistogramState


@attrs.frozen
class ValidationCounts:
    """Objects that an API server asked about, since the start."""

    passed: Mapping[tuple[str, str, str], int]
    """The good ones, by group, version and resource."""
    failed: Mapping[tuple[str, str, str, str], int]
    """The others, by the same and the reason."""
    http_errors: Mapping[int, int]
    """Requests that were answered with an error, by status."""


@attrs.frozen
class InjectionCounts:
    """Pods that an API server asked about, since the start."""

    requests: int
    success: int
    failure: int
    skip: int
    seconds: HistogramState


@attrs.frozen
class BundleCounts:
    """Writes to webhook configurations, since the start."""

    attempts: Mapping[str, int]
    """Attempts by the name of a configuration."""
    retries: Mapping[str, int]
    """Retries by the name of a configuration."""
    failures: Mapping[tuple[str, str], int]
    """Failures by the name of a configuration and the reason."""
    validation_updates: int
    validation_update_errors: Mapping[str, int]
    """Failed updates by the API server's reason."""
    validation_load_errors: Mapping[str, int]
    """Failed loads by reason."""


@attrs.frozen
class RootCertificateCounts:
    """Writes of ConfigMaps with roots, since the start."""

    namespaces: int
    """Namespaces that are to have one, now."""
    written: int
    failed: int


class WebhookState(Protocol):
    """The webhooks of a control plane."""

    def validations(self) -> ValidationCounts: ...

    def injections(self) -> InjectionCounts: ...

    def bundle_counts(self) -> BundleCounts | None:
        """None where nothing is written to an API server."""

    def root_counts(self) -> RootCertificateCounts | None:
        """The same."""
