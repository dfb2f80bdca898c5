"""The address of an API server, and who we are to it: values, as a kubeconfig or a pod gives them.

Source of the rules: Kubernetes, "Organizing Cluster Access Using kubeconfig Files" and "Client Authentication (v1)".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import attrs

from mesh_pilot.sources.base.contract import SourceError


class KubernetesError(SourceError):
    """An API server that can't be used with these settings, or does not answer: the reason, in one line."""


@attrs.frozen(kw_only=True)
class Pem:
    """PEM text, or a token, in a file, which is read again for each use, or given directly."""

    path: Path | None = None
    text: bytes = attrs.field(default=b"", repr=False)

    def __bool__(self) -> bool:
        return self.path is not None or bool(self.text)

    def read(self) -> bytes:
        """The text; of a file that can't be read, the text that was given besides. Raises KubernetesError."""
        if self.path is None:
            return self.text
        try:
            return self.path.read_bytes()
        except OSError as error:
            if self.text:
                return self.text
            raise KubernetesError(f"cannot read {self.path}: {error.strerror}") from error


@attrs.frozen(kw_only=True)
class ExecPlugin:
    """A command that gives credentials: ``users[].user.exec`` of a kubeconfig."""

    api_version: str
    command: str
    """A name that is looked up in ``PATH``, or the path of a file."""
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    install_hint: str = ""
    cluster_info: str = ""
    """``spec.cluster`` of the ExecCredential that it is given, as JSON; empty: it is not given any."""

    def request(self) -> str:
        """The ExecCredential that it is given as ``KUBERNETES_EXEC_INFO``."""
        spec: dict[str, object] = {"interactive": False}
        if self.cluster_info:
            spec["cluster"] = json.loads(self.cluster_info)
        return json.dumps({"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec})


@attrs.frozen(kw_only=True)
class Access:
    """An API server, and the credentials towards it."""

    server: str
    """The URL of the API server."""
    authority: Pem = Pem()
    """The CA certificates for the server's certificate; empty: those that the system trusts."""
    verify: bool = True
    server_name: str = ""
    """The name in its certificate, where it is not that of the URL."""
    proxy: str = attrs.field(default="", repr=False)
    """The URL of the proxy on the way to it; empty: by the environment, ``HTTPS_PROXY`` and ``NO_PROXY``."""
    certificate: Pem = Pem()
    key: Pem = Pem()
    token: Pem = Pem()
    password: str = attrs.field(default="", repr=False)
    """``name:password``."""
    plugin: ExecPlugin | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """The headers of every request: for whom we act (impersonation), and whether answers may be compressed."""


def impersonation(user: str, uid: str, groups: list[str], extra: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """The headers by which requests are made as somebody else."""
    found = [("Impersonate-User", user)] if user else []
    found += [("Impersonate-Uid", uid)] if uid else []
    found += [("Impersonate-Group", group) for group in groups]
    return found + [(f"Impersonate-Extra-{_header_name(name)}", value) for name in extra for value in extra[name]]


def _header_name(name: str) -> str:
    """A key in a header's name: what can't be in there is percent-encoded."""
    allowed = "!#$&'*+-.^_`|~"
    return "".join(
        character if character.isascii() and (character.isalnum() or character in allowed)
        else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in name
    )  # fmt: skip
