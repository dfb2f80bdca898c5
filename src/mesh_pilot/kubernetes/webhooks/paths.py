"""The variables in the path of the webhook for injection: ``/inject/cluster/eu-1/net/blue``, as in Istio.

They are for clusters whose Pods another cluster's control plane injects. ``--slash--`` in a value is a slash.
"""

from __future__ import annotations

import re

_NAMES = {"cluster": "ISTIO_META_CLUSTER_ID", "net": "ISTIO_META_NETWORK"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_MARK = ":ENV:"
MAX_VARIABLES = 20


def variables_of(path: str) -> dict[str, str]:
    """The variables by name; ``path`` without the query. Pairs without a value or with a bad name are left out."""
    rest = path.removeprefix("/inject").strip("/")
    if rest.startswith(_MARK):
        pairs = [tuple(part.partition("=")[::2]) for part in rest.split(_MARK)[1:] if "=" in part]
    else:
        parts = rest.split("/")
        pairs = list(zip(parts[::2], [value.replace("--slash--", "/") for value in parts[1::2]], strict=False))
    named = {_NAMES.get(name, name.upper()): value for name, value in pairs}
    return {name: value for name, value in list(named.items())[:MAX_VARIABLES] if _VARIABLE.fullmatch(name)}
