"""The settings of the built-in CA, after Istio's variables of the same names."""

from __future__ import annotations

from datetime import timedelta

import attrs


@attrs.frozen(kw_only=True)
class AuthoritySettings:
    """Lifetimes of certificates."""

    workload_cert_ttl: timedelta = timedelta(hours=24)
    """Of workload certificates where nobody asks for another (Istio's ``DEFAULT_WORKLOAD_CERT_TTL``)."""
    max_workload_cert_ttl: timedelta = timedelta(days=90)
    """The longest that a workload may ask for (Istio's ``MAX_WORKLOAD_CERT_TTL``)."""


DEFAULT_AUTHORITY = AuthoritySettings()
