"""The settings of an EST server that signs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

from mesh_pilot.identity.signers.settings import HttpSettings, setting
from mesh_pilot.model.config import Problem

_LABEL = re.compile(r"[A-Za-z0-9._~-]+")


@attrs.frozen(kw_only=True)
class EstSettings(HttpSettings):
    """``kind: est``: a server, and a user or a client certificate, or both."""

    label: str = setting("label", "")
    """The CA, of several at one server: EJBCA's alias. Empty: the only one."""
    user: str = setting("user", "")
    password_file: Path | None = setting("passwordFile", None)
    """Read at each request."""

    def problems(self) -> Iterator[Problem]:
        """See ``SignerSettings``."""
        yield from super().problems()
        if self.label and not _LABEL.fullmatch(self.label):
            yield Problem("label", f"{self.label!r} is not one segment of a path")
        if bool(self.user) != (self.password_file is not None):
            yield Problem("user", "goes with passwordFile: the server asks for both")
        if ":" in self.user:
            yield Problem("user", "has a colon, which HTTP does not allow there")
        if not self.user and self.client_certificate is None:
            yield Problem("", "name clientCertificate, or user and passwordFile: the server has to know who asks")
