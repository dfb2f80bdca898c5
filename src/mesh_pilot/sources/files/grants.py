"""Grants of a credential: who may have it beyond the gateways of its namespace.

A grant is ``NAMESPACE``, for the gateways of a namespace, or ``NAMESPACE/SERVICE-ACCOUNT``, for all proxies of a
service account. A credential's folder has a list of them in ``grants.yaml``, a Secret in an annotation, separated by
commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml

from mesh_pilot.model.events import Grant

GRANTS = "grants.yaml"
"""Name of the file in a credential's folder."""

ANNOTATION = "mesh-pilot/grants"
"""Annotation of a Secret: ``shop, bank/web``."""

_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_GRANT = re.compile(rf"(?P<namespace>{_LABEL})(/(?P<account>{_LABEL}(\.{_LABEL})*))?")


def read_grants_file(content: bytes) -> tuple[Grant, ...]:
    """The grants of a file: a list in YAML. Raises ValueError with what is wrong."""
    try:
        found = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError("is not a list in YAML, such as [shop, bank/web]")
    return _grants(found)


def read_grants_annotation(text: str) -> tuple[Grant, ...]:
    """The grants of an annotation. Raises ValueError with what is wrong."""
    return _grants(part.strip() for part in text.split(",") if part.strip())


def _grants(texts: Iterable[str]) -> tuple[Grant, ...]:
    grants = []
    for text in texts:
        match = _GRANT.fullmatch(text)
        if match is None:
            raise ValueError(f"names {text!r}, which is not NAMESPACE or NAMESPACE/SERVICE-ACCOUNT")
        grants.append(Grant(match["namespace"], match["account"] or ""))
    return tuple(dict.fromkeys(grants))
