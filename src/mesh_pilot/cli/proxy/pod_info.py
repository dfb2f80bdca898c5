"""Labels and annotations of the Pod that the agent runs in, as Kubernetes' downward API writes them into files.

Each line is ``KEY="VALUE"``, with the value quoted as in Go. An injected sidecar has them where Istio's has.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path("/etc/istio/pod")
MAX_BYTES = 1 << 20
"""The largest size of a file; Kubernetes allows annotations a quarter of it."""

_LINE = re.compile(r'([^=\n]+)="((?:[^"\\\n]|\\.)*)"')


def pod_labels() -> dict[str, str]:
    """The labels of the Pod; none outside of one."""
    return _entries(FOLDER / "labels")


def pod_annotations() -> dict[str, str]:
    """The annotations of the Pod; none outside of one."""
    return _entries(FOLDER / "annotations")


def _entries(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    return {key: _unquoted(value) for key, value in _LINE.findall(text)}


def _unquoted(value: str) -> str:
    return value.encode("latin-1", "backslashreplace").decode("unicode_escape") if "\\" in value else value
