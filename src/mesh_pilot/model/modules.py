"""References to WebAssembly modules: where a module is, and what decides whether two objects mean the same."""

from __future__ import annotations

import hashlib

import attrs

DIGEST = "sha256:"
"""Begins the digest of an image, also in a URL: ``oci://registry/image@sha256:...``."""

OCI = "oci://"
FILE = "file://"


def module_stand_in(body: bytes) -> str:
    """The text that pages show in place of a module's bytes."""
    return f"[module of {len(body)} bytes, sha256 {hashlib.sha256(body).hexdigest()}]"


@attrs.frozen(order=True)
class ModuleRef:
    """A module that an object asks for. Objects that agree in all of it have one module."""

    url: str
    """``oci://``, ``https://``, ``http://`` or ``file://``; never without a scheme."""
    sha256: str = ""
    """The checksum that it must have, of the module or of the image's manifest; empty: any."""
    pull_secret: tuple[str, str] = ("", "")
    """Namespace and name of the Secret with the credentials of the registry; empty: none."""

    def __str__(self) -> str:
        return self.url

    @property
    def is_pinned(self) -> bool:
        """True if it can never be another module."""
        return bool(self.sha256) or (self.url.startswith(OCI) and f"@{DIGEST}" in self.url)

    @property
    def is_latest(self) -> bool:
        """True for an image that Istio pulls always unless told otherwise: with the tag ``latest``."""
        return self.url.startswith(OCI) and self.url.endswith(":latest")
