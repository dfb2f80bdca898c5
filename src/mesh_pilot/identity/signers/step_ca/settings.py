"""The settings of a step-ca that signs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from mesh_pilot.identity.signers.settings import HttpSettings, setting
from mesh_pilot.model.config import Problem


@attrs.frozen(kw_only=True)
class StepCaSettings(HttpSettings):
    """``kind: stepCA``: a server, and a JWK provisioner of it."""

    provisioner: str = setting("provisioner")
    password_file: Path | None = setting("passwordFile", None)
    """The password of the provisioner's key."""
    key_file: Path | None = setting("keyFile", None)
    """The key, a JWK or PEM, or a JWE with the password; None: the JWE that the CA has."""

    def problems(self) -> Iterator[Problem]:
        """See ``SignerSettings``."""
        yield from super().problems()
        if self.password_file is None and self.key_file is None:
            yield Problem("passwordFile", "is missing: the CA gives the provisioner's key encrypted")
