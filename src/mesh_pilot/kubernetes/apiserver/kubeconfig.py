"""The access to an API server: from kubeconfigs as kubectl reads them, or as a pod.

Source of the rules: Kubernetes, "Organizing Cluster Access Using kubeconfig Files" and "Accessing the Kubernetes API
from a Pod".
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import yaml

from mesh_pilot.base.reading import as_object, as_objects
from mesh_pilot.kubernetes.apiserver.access import Access, ExecPlugin, KubernetesError, Pem, impersonation

POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_CLUSTER_EXTENSION = "client.authentication.k8s.io/exec"
_PROXIES = ("http", "https", "socks5", "socks5h")

Fields = Mapping[str, object]


def load_access(path: Path | None, context: str = "", *, flag: str = "") -> Access:
    """The access by a context of a kubeconfig, its current one if none is named.

    ``path`` None: as a pod where we are one and no context is named, else by the files of ``KUBECONFIG`` or
    ``~/.kube/config``. ``flag`` is what names the path: errors begin with it. Raises KubernetesError.
    """
    try:
        return _load(path, context)
    except KubernetesError as error:
        if not flag:
            raise
        raise KubernetesError(f"{flag}: {error}") from error


def _load(path: Path | None, context: str) -> Access:
    if path is not None:
        return _Kubeconfig([_read(path)]).access(context)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if host and not context and (POD / "token").exists():
        host = f"[{host}]" if ":" in host else host
        return Access(
            server=f"https://{host}:{port}", authority=Pem(path=POD / "ca.crt"), token=Pem(path=POD / "token")
        )
    named = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    paths = named or [Path.home() / ".kube" / "config"]
    there = [each for each in paths if each.exists()]
    if not there:
        names = ", ".join(map(str, paths))
        raise KubernetesError(f"cannot read the kubeconfig {names}: No such file or directory; name one")
    return _Kubeconfig([_read(each) for each in there]).access(context)


def access_of_kubeconfig(text: str, where: str, context: str = "", *, allowed: Collection[str] | None = None) -> Access:
    """The access by a kubeconfig that is not a file; errors begin with ``where`` people find it.

    Its files must have absolute paths. ``allowed`` is for text that others wrote: of ``exec``, ``tokenFile``,
    ``clientKey``, ``clientCertificate`` and ``certificateAuthority`` (as files), it may have those only. Raises
    KubernetesError.
    """
    return _Kubeconfig([_parsed(text, where, None)], allowed).access(context)


@attrs.frozen
class _KubeconfigFile:
    where: str
    folder: Path | None
    """The folder of its relative paths."""
    document: Fields


@attrs.frozen
class _Named:
    """A context, cluster or user with the file that has it: of several of one name, the first."""

    file: _KubeconfigFile
    fields: Fields

    def text(self, name: str) -> str:
        """Raises KubernetesError."""
        value = self.fields.get(name)
        if isinstance(value, Mapping | list):
            raise KubernetesError(f"{self.file.where}: {name} is not a string")
        return "" if value is None else str(value)

    def pem(self, file: str, data: str) -> Pem:
        """Raises KubernetesError."""
        if text := self.text(data):
            try:
                return Pem(text=base64.b64decode("".join(text.split()), validate=True))
            except ValueError:
                raise KubernetesError(f"{self.file.where}: {data} is not base64") from None
        return Pem(path=self.path(file)) if self.text(file) else Pem()

    def path(self, name: str) -> Path:
        """Raises KubernetesError."""
        found = Path(self.text(name))
        if self.file.folder is None and not found.is_absolute():
            raise KubernetesError(f"{self.file.where}: {name} {found} is not absolute; put it into {name}-data instead")
        return found if self.file.folder is None else self.file.folder / found


@attrs.frozen
class _Kubeconfig:
    """Files that are read as one: what an earlier file says stands."""

    files: list[_KubeconfigFile]
    allowed: Collection[str] | None = None
    """The fields that run commands or read files here, and may nevertheless; None: all."""

    @property
    def where(self) -> str:
        return ", ".join(file.where for file in self.files)

    def access(self, name: str) -> Access:
        name = name or next(
            (str(f.document["current-context"]) for f in self.files if f.document.get("current-context")), ""
        )
        if not name:
            raise KubernetesError(f"{self.where} has no current-context; name a context: {self._names('contexts')}")
        context = self._entry("contexts", "context", name)
        cluster = self._entry("clusters", "cluster", context.text("cluster"))
        user = _Named(context.file, {})
        if context.text("user"):
            user = self._entry("users", "user", context.text("user"))
        # What cannot work, and what a foreign kubeconfig may not do here, is refused before anything of it is used.
        _refuse(user)
        if self.allowed is not None:
            self._check_risks(cluster, user, self.allowed)
        server, proxy, where = cluster.text("server"), cluster.text("proxy-url"), cluster.file.where
        if not _is_url(server, ("http", "https")):
            raise KubernetesError(f"{where} names no server for the cluster {context.text('cluster')}")
        if urlsplit(server).username is not None:
            raise KubernetesError(f"{where}: the URL of the server has a user; put username and password into users")
        if proxy and not _is_url(proxy, _PROXIES):
            raise KubernetesError(f"{where}: proxy-url is not valid; its scheme is one of {', '.join(_PROXIES)}")
        server_name = cluster.text("tls-server-name")
        if not server_name.isprintable():
            raise KubernetesError(f"{where}: tls-server-name is not a name")
        headers = _impersonation(user)
        if cluster.fields.get("disable-compression"):
            headers.append(("accept-encoding", "identity"))
        name, password = user.text("username"), user.text("password")
        return Access(
            server=server,
            authority=cluster.pem("certificate-authority", "certificate-authority-data"),
            verify=not cluster.fields.get("insecure-skip-tls-verify"),
            server_name=server_name,
            proxy=proxy,
            certificate=user.pem("client-certificate", "client-certificate-data"),
            key=user.pem("client-key", "client-key-data"),
            token=Pem(
                path=user.path("tokenFile") if user.text("tokenFile") else None, text=user.text("token").encode()
            ),
            password=f"{name}:{password}" if name else "",
            plugin=_plugin(user, cluster),
            headers=tuple(headers),
        )

    def _check_risks(self, cluster: _Named, user: _Named, allowed: Collection[str]) -> None:
        """Raises KubernetesError."""
        fields = {
            "exec": user.fields.get("exec"),
            "tokenFile": user.fields.get("tokenFile"),
            "clientKey": user.fields.get("client-key"),
            "clientCertificate": user.fields.get("client-certificate"),
            "certificateAuthority": cluster.fields.get("certificate-authority"),
        }
        found = [name for name, value in fields.items() if value and name not in allowed]
        if found:
            raise KubernetesError(
                f"{self.where} has {', '.join(found)}, which would run a command or read a file here, and is not "
                "allowed: put the credentials themselves into it"
            )

    def _entry(self, collection: str, kind: str, name: str) -> _Named:
        for file in self.files:
            for entry in as_objects(file.document, collection):
                fields = entry.get(kind)
                if str(entry.get("name")) == name and isinstance(fields, Mapping):
                    return _Named(file, fields)
        raise KubernetesError(f"{self.where} has no {kind} {name}; it has {self._names(collection)}")

    def _names(self, collection: str) -> str:
        return (
            ", ".join(str(entry.get("name")) for f in self.files for entry in as_objects(f.document, collection))
            or "none"
        )


def _read(path: Path) -> _KubeconfigFile:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise KubernetesError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KubernetesError(f"the kubeconfig {path} is not YAML: it is not UTF-8") from error
    return _parsed(text, f"the kubeconfig {path}", path.absolute().parent)


def _parsed(text: str, where: str, folder: Path | None) -> _KubeconfigFile:
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else type(error).__name__
        raise KubernetesError(f"{where} is not YAML: {place}") from None  # the error's own text has lines with tokens
    if not document:
        raise KubernetesError(f"{where} is empty")
    if not isinstance(document, Mapping):
        raise KubernetesError(f"{where} is not a kubeconfig: it is not an object")
    return _KubeconfigFile(where, folder, document)


def _is_url(text: str, schemes: Collection[str]) -> bool:
    try:
        found = urlsplit(text)
        return text.isprintable() and found.scheme in schemes and bool(found.hostname) and found.port != 0
    except ValueError:
        return False


def _refuse(user: _Named) -> None:
    """Raise KubernetesError for credentials of kinds that are no longer made."""
    if isinstance(provider := user.fields.get("auth-provider"), Mapping):
        raise KubernetesError(
            f"{user.file.where} gets its token by the auth-provider {provider.get('name')}, which kubectl has no "
            "longer either; use an exec plugin, a token or a tokenFile"
        )


def _impersonation(user: _Named) -> list[tuple[str, str]]:
    groups, extra = user.fields.get("as-groups") or [], user.fields.get("as-user-extra") or {}
    if (groups or extra or user.text("as-uid")) and not user.text("as"):
        raise KubernetesError(
            f"{user.file.where} has as-groups, as-uid or as-user-extra without as: name the user, too"
        )
    if not isinstance(groups, list) or not isinstance(extra, Mapping):
        raise KubernetesError(f"{user.file.where}: as-groups is a list, and as-user-extra a map of lists")
    values = {
        str(name): [str(v) for v in each] if isinstance(each, list) else [str(each)] for name, each in extra.items()
    }
    return impersonation(user.text("as"), user.text("as-uid"), [str(group) for group in groups], values)


def _plugin(user: _Named, cluster: _Named) -> ExecPlugin | None:
    found = user.fields.get("exec")
    if found is None:
        return None
    where = f"{user.file.where}: exec"
    plugin = as_object(found)
    # Wrong in these ways a plugin would fail each time that a credential is needed; said here, it is said at the start.
    version, command = str(plugin.get("apiVersion")), str(plugin.get("command") or "")
    if version not in PLUGIN_VERSIONS:
        raise KubernetesError(f"{where} has apiVersion {version}; known are {' and '.join(PLUGIN_VERSIONS)}")
    if not command:
        raise KubernetesError(f"{where} names no command")
    if plugin.get("interactiveMode") == "Always":
        raise KubernetesError(f"{where} has interactiveMode Always, and there is no terminal to answer at; use a token")
    if "/" in command and user.file.folder is not None:
        command = str(user.file.folder / command)
    arguments, environment = plugin.get("args") or [], plugin.get("env") or []
    if not isinstance(arguments, list) or not isinstance(environment, list):
        raise KubernetesError(f"{where}: args and env are lists")
    return ExecPlugin(
        api_version=version,
        command=command,
        arguments=tuple(map(str, arguments)),
        environment=tuple((str(e.get("name")), str(e.get("value") or "")) for e in as_objects(environment)),
        install_hint=" ".join(str(plugin.get("installHint") or "").split()),
        cluster_info=json.dumps(_cluster_info(cluster)) if plugin.get("provideClusterInfo") else "",
    )


def _cluster_info(cluster: _Named) -> dict[str, object]:
    """The cluster, as a plugin is told of it."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
    info = {name: cluster.fields[name] for name in names if cluster.fields.get(name)}
    if authority := cluster.pem("certificate-authority", "certificate-authority-data"):
        info["certificate-authority-data"] = base64.b64encode(authority.read()).decode()
    for extension in as_objects(cluster.fields, "extensions"):
        if extension.get("name") == _CLUSTER_EXTENSION:
            info["config"] = extension.get("extension")
    return info
