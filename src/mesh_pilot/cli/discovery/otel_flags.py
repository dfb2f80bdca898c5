"""Flags of ``mesh-pilot discovery`` about receivers of OpenTelemetry: traces and metrics."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import click

from mesh_pilot.model.flags import FlagKind, flag

if TYPE_CHECKING:
    from mesh_pilot.ops.tracing.settings import MetricsPushSettings, TraceSettings

_otel = partial(flag, section="OpenTelemetry")


def otel_endpoint(text: str) -> str:
    """The URL of an OTLP receiver. Raises ValueError."""
    if not text.startswith(("http://", "https://")) or not urlsplit(text).hostname:
        raise ValueError(f"{text!r} is not a URL such as http://localhost:4318")
    return text


@attrs.frozen(kw_only=True, eq=False, repr=False)
class OtelFlags:
    """Receivers of OpenTelemetry."""

    traces: str | None = _otel(
        "--otel-traces",
        kind=otel_endpoint,
        metavar="URL",
        help="OTLP receiver over HTTP, http://host:4318, of traces of changes (docs/metrics.md).",
        doc="OTLP receiver over HTTP, `http://host:4318`, of [traces of changes](metrics.md#traces-of-changes).",
    )
    metrics: str | None = _otel(
        "--otel-metrics",
        kind=otel_endpoint,
        metavar="URL",
        help="OTLP receiver over HTTP, http://host:4318, of metrics (docs/metrics-export.md).",
        doc="OTLP receiver over HTTP, `http://host:4318`, of [metrics](metrics-export.md#push-to-opentelemetry).",
    )
    interval: float = _otel(
        "--otel-metrics-interval",
        kind=FlagKind.DURATION,
        default=60.0,
        text="60s",
        help="Time between two pushes of metrics.",
    )
    ca: Path | None = _otel("--otel-tls-ca", help="PEM file of their roots, for https.  [default: the system's]")
    certificate: Path | None = _otel("--otel-tls-cert", help="PEM file of a certificate for those that ask for one.")
    key: Path | None = _otel("--otel-tls-key", help="PEM file of its key.")

    def settings(self, revision: str) -> tuple[TraceSettings | None, MetricsPushSettings | None]:
        """The receivers of traces and of metrics. Raises UsageError."""
        if bool(self.certificate) != bool(self.key):
            raise click.UsageError("a certificate needs both of --otel-tls-cert and --otel-tls-key")
        from mesh_pilot.net.otlp.push import LEAST_SECONDS, MOST_SECONDS, PushSettings
        from mesh_pilot.net.rpc.tls import CertificateFiles
        from mesh_pilot.ops.tracing.settings import MetricsPushSettings, ReceiverSettings, TraceSettings

        if not LEAST_SECONDS <= self.interval <= MOST_SECONDS:
            raise click.UsageError(
                f"--otel-metrics-interval must be {LEAST_SECONDS:g} s to {MOST_SECONDS:g} s, not {self.interval:g} s"
            )
        files = CertificateFiles(certificate=self.certificate, key=self.key, trusted=self.ca)
        receiver = ReceiverSettings(files, revision)
        return (
            TraceSettings(self.traces, receiver=receiver) if self.traces else None,
            MetricsPushSettings(PushSettings(self.metrics, self.interval), receiver) if self.metrics else None,
        )
