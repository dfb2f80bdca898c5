"""The settings of webhooks."""

from __future__ import annotations

from pathlib import Path

import attrs

from mesh_pilot.kubernetes.apiserver import Access
from mesh_pilot.kubernetes.webhooks.injection.configuration import InjectionSettings


@attrs.frozen(kw_only=True)
class WebhookSettings:
    """How an API server asks about objects and Pods, and how it is told whom to trust."""

    address: str
    """Where it is asked, over HTTPS."""
    dns_names: tuple[str, ...] = ()
    """Names in the certificate; empty: those of the Services ``istiod`` and ``mesh-pilot`` in our namespace."""
    injection: InjectionSettings = attrs.field(factory=InjectionSettings)
    injection_file: Path | None = None
    """File with settings of injection over these; read again when it changes."""
    revision: str = ""
    """``istio.io/rev`` of the webhook configurations that are ours; empty: ``default``."""
    access: Access | None = None
    """The API server with the webhook configurations; None: they are left alone."""
