"""The address of the API server and the credentials towards it: from a kubeconfig, or as a pod.

Source of the rules: Kubernetes, "Organizing Cluster Access Using kubeconfig Files" and "Accessing the Kubernetes API
from a Pod".
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

import attrs
import httpx
import yaml

POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_SECONDS = 10.0


class KubernetesError(Exception):
    """An API server that can't be used with these settings, or does not answer: the reason, in one line."""


@attrs.frozen(kw_only=True)
class Pem:
    """PEM text in a file, which is read anew for each use, or given directly."""

    path: Path | None = None
    text: bytes = attrs.field(default=b"", repr=False)

    def __bool__(self) -> bool:
        return self.path is not None or bool(self.text)

    def read(self) -> bytes:
        """The text. Raises KubernetesError."""
        if self.path is None:
            return self.text
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise KubernetesError(f"cannot read {self.path}: {error.strerror}") from error


@attrs.frozen(kw_only=True)
class Access:
    """An API server, and the credentials towards it."""

    server: str
    """Its URL."""
    authority: Pem = Pem()
    """Of its certificate; empty: those that the system trusts."""
    certificate: Pem = Pem()
    key: Pem = Pem()
    token: Pem = Pem()
    verify: bool = True

    def client(self, read_seconds: float, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
        """A client with the files as they are now; ``read_seconds``: how long the server may say nothing.

        Raises KubernetesError.
        """
        headers = {"accept": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token.read().decode('ascii', 'replace').strip()}"
        timeout = httpx.Timeout(CONNECT_SECONDS, read=read_seconds)
        return httpx.AsyncClient(
            base_url=self.server,
            headers=headers,
            verify=self._tls(),
            timeout=timeout,
            trust_env=False,
            transport=transport,
        )

    def _tls(self) -> ssl.SSLContext | bool:
        if not self.server.startswith("https:"):
            return False
        try:
            context = ssl.create_default_context()
            if self.authority:
                context.load_verify_locations(cadata=self.authority.read().decode("ascii", "replace"))
            if not self.verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if self.certificate:
                with tempfile.TemporaryDirectory() as folder:  # ssl takes these from files only
                    certificate, key = Path(folder, "certificate"), Path(folder, "key")
                    certificate.write_bytes(self.certificate.read())
                    key.write_bytes(self.key.read())
                    context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise KubernetesError(f"{self.server}: its certificate files can't be used: {error}") from error
        return context


def load_access(path: Path | None, context: str = "") -> Access:
    """By a context of a kubeconfig, its current one if none is named.

    ``path`` None: as a pod where we are one, else by ``KUBECONFIG`` or ``~/.kube/config``.

    Raises KubernetesError.
    """
    if path is not None:
        return _from_kubeconfig(path, context)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if host and (POD / "token").exists():
        host = f"[{host}]" if ":" in host else host
        return Access(
            server=f"https://{host}:{port}", authority=Pem(path=POD / "ca.crt"), token=Pem(path=POD / "token")
        )
    return _from_kubeconfig(Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config"), context)


def _from_kubeconfig(path: Path, name: str) -> Access:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KubernetesError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KubernetesError(f"the kubeconfig {path} is not YAML: {error}") from error
    if not isinstance(document, Mapping):
        raise KubernetesError(f"the kubeconfig {path} is empty")
    context = _named(document, "contexts", "context", name or document.get("current-context"), path)
    cluster = _named(document, "clusters", "cluster", context.get("cluster"), path)
    user = _named(document, "users", "user", context["user"], path) if context.get("user") else {}
    for unsupported in ("exec", "auth-provider"):
        if unsupported in user:
            raise KubernetesError(
                f"the kubeconfig {path} gets its token by {unsupported}; give it a token or tokenFile"
            )
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("http://", "https://")):
        raise KubernetesError(f"the kubeconfig {path} names no server")
    token = Pem(text=str(user["token"]).encode()) if user.get("token") else _pem(user, "tokenFile", "", path)
    return Access(
        server=server,
        authority=_pem(cluster, "certificate-authority", "certificate-authority-data", path),
        certificate=_pem(user, "client-certificate", "client-certificate-data", path),
        key=_pem(user, "client-key", "client-key-data", path),
        token=token,
        verify=not cluster.get("insecure-skip-tls-verify"),
    )


def _named(
    document: Mapping[str, object], collection: str, kind: str, name: object, path: Path
) -> Mapping[str, object]:
    entries = document.get(collection)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("name") == name and isinstance(entry.get(kind), Mapping):
            found: Mapping[str, object] = entry[kind]
            return found
    raise KubernetesError(f"the kubeconfig {path} has no {kind} {name}")


def _pem(entry: Mapping[str, object], file: str, data: str, path: Path) -> Pem:
    if text := entry.get(data):
        try:
            return Pem(text=base64.b64decode(str(text), validate=True))
        except binascii.Error as error:
            raise KubernetesError(f"the kubeconfig {path}: {data} is not base64") from error
    if name := entry.get(file):
        return Pem(path=path.parent / str(name))
    return Pem()
