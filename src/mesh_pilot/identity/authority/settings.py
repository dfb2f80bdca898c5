"""The settings of the built-in CA, after Istio's variables of the same names."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import attrs

from mesh_pilot.model.flags import flag

_flag = partial(flag, section="Certificates")


@attrs.frozen(kw_only=True)
class AuthoritySettings:
    """Lifetimes of certificates."""

    workload_cert_ttl: timedelta = _flag(
        "--workload-cert-ttl",
        default=timedelta(hours=24),
        help="Lifetime of certificates, unless another is asked for.",
    )
    max_workload_cert_ttl: timedelta = _flag(
        "--max-workload-cert-ttl",
        default=timedelta(days=90),
        help="Longest lifetime that a workload may ask for.",
    )


DEFAULT_AUTHORITY = AuthoritySettings()
