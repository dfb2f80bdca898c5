"""Metrics of the application, merged with Envoy's at the agent: the annotations of Prometheus lead there.

What they said before is in ``ISTIO_PROMETHEUS_ANNOTATIONS``, for the agent. Source of the rules: Istio, "Prometheus",
"Option 1: Metrics merging".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

VARIABLE = "ISTIO_PROMETHEUS_ANNOTATIONS"
MERGE = "prometheus.istio.io/merge-metrics"

_SCRAPE, _PORT, _PATH = "prometheus_io_scrape", "prometheus_io_port", "prometheus_io_path"
_TARGETS = "prometheus_istio_io_scrape_targets"
_OTHERS = {15000: "Envoy's admin port", 15001: "Envoy's", 15006: "Envoy's", 15008: "Envoy's", 15020: "the agent's",
           15021: "the readiness port", 15053: "the DNS port", 15090: "Envoy's metrics"}  # fmt: skip
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")
"""Booleans as Go reads them."""


class ScrapingError(ValueError):
    """Annotations about metrics that cannot be followed: the reason, for the Pod's owner."""


def is_true(text: str, default: bool) -> bool:
    """A boolean in an annotation; ``default`` for anything else."""
    return text in _TRUE if text in (*_TRUE, *_FALSE) else default


def merged_scraping(
    annotations: Mapping[str, str], status_port: int, *, enabled: bool
) -> tuple[dict[str, str], str] | None:
    """The annotations that lead to the agent, and the value of the variable; None: metrics are not merged.

    Raises ScrapingError.
    """
    named = {re.sub(r"[^a-zA-Z0-9_]", "_", name): value for name, value in annotations.items()}
    if not is_true(named.get(_SCRAPE, ""), True) or not is_true(annotations.get(MERGE, ""), enabled):
        return None
    if named.get(_PORT) == str(status_port):
        return None  # the user's doing, or ours before
    settings: dict[str, Any] = {
        key: named[name] for name, key in ((_SCRAPE, "scrape"), (_PORT, "port"), (_PATH, "path")) if named.get(name)
    }
    if targets := list(_targets(named.get(_TARGETS, ""), status_port)):
        settings |= {"scrape": "true", **targets[0], "targets": targets}
    elif "port" in settings:
        _check_port(settings["port"], status_port)
    kept = {name: value for name, value in annotations.items() if not _is_about_scraping(name)}
    ours = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(status_port),
        "prometheus.io/path": "/stats/prometheus",
    }
    # Without the variable, the agent would take the annotations that are written here for the application's.
    return {**kept, **ours}, json.dumps(settings or {"scrape": "false"}, sort_keys=True, separators=(",", ":"))


def _is_about_scraping(name: str) -> bool:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name) in (_SCRAPE, _PORT, _PATH, _TARGETS)


def _targets(text: str, status_port: int) -> Iterator[dict[str, str]]:
    for part in filter(None, (part.strip() for part in text.split(","))):
        port, _, path = part.partition(":")
        _check_port(port.strip(), status_port)
        yield {"port": port.strip(), "path": path.strip() or "/metrics"}


def _check_port(text: str, status_port: int) -> None:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536):
        raise ScrapingError(f"the port of the application's metrics is {text!r}, which is not a port of TCP")
    if (port := int(text)) == status_port or port in _OTHERS:
        raise ScrapingError(f"the port of the application's metrics is {port}, which is {_OTHERS.get(port, 'ours')}")
