"""A real Kubernetes API server with its etcd, without nodes and controllers, and what a test does with it.

def test_...(apiserver: ApiServer) -> None:        # tests/conftest.py: one for all tests of a process
    async with apiserver.namespace("shop") as namespace:
        await apiserver.apply(namespace.object("v1", "ConfigMap", "settings", data={"a": "b"}))
        access = load_access(apiserver.kubeconfig())

No controller works there: a Namespace has no default ServiceAccount, a Service no EndpointSlice, a Deployment no Pods,
and what is deleted by its owner stays. A test writes what it needs.

    python -m tests.support.apiserver     # one to play with, until Ctrl-C; prints the path of its kubeconfig
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio
import yaml

from tests.support.binaries import require_binary
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.ports import free_ports

Object = dict[str, Any]

ADMIN = "admin"
START_SECONDS = 90.0
_FAST = (
    "--endpoint-reconciler-type=none",
    "--enable-priority-and-fairness=false",
    "--profiling=false",
    "--shutdown-delay-duration=0",
    "--allow-privileged=true",
    "--service-cluster-ip-range=10.96.0.0/16",
    "--service-account-issuer=https://kubernetes.default.svc",
    "--api-audiences=https://kubernetes.default.svc,istio-ca",
    "--authorization-mode=RBAC",
    "--event-ttl=1m",
    "-v=0",
)
_NAMES = count(1)
_WAITED = 0.05


@attrs.frozen
class Namespace:
    """A namespace of a test, and the objects in it."""

    name: str

    def object(self, api_version: str, kind: str, name: str, /, **parts: Any) -> Object:
        """An object of it; ``parts`` are spec, data, and so on, and labels and annotations."""
        metadata = {key: parts.pop(key) for key in ("labels", "annotations") if key in parts}
        metadata |= {"name": name, "namespace": self.name}
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **parts}


@attrs.define(eq=False)
class ApiServer:
    """State: two processes, which can be stopped and started, and the folder with all that they keep."""

    folder: Path
    users: Mapping[str, Sequence[str]] = attrs.field(factory=lambda: {ADMIN: ("system:masters",)})
    """Groups of each user. A user's token is the name with ``-token``."""
    flags: Sequence[str] = ()
    """More of them, for the next start; the last of two of a name counts."""
    has_accounts: bool = False
    """A Pod needs an account that is there, and mounts its token, which somebody has to issue."""
    etcd_process: subprocess.Popen[bytes] | None = attrs.field(default=None, init=False)
    process: subprocess.Popen[bytes] | None = attrs.field(default=None, init=False)
    ports: Sequence[int] = attrs.field(factory=lambda: free_ports(3), init=False)
    """Of the API server, and of etcd for clients and for peers. They stay the same over restarts."""

    def __attrs_post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        names = ("kubernetes", "kubernetes.default.svc", "localhost")
        write_certificates(self.folder, "apiserver", dns=names)
        write_certificates(self.folder, "accounts")
        lines = [f'{name}-token,{name},uid-{name},"{",".join(groups)}"' for name, groups in self.users.items()]
        (self.folder / "tokens.csv").write_text("".join(f"{line}\n" for line in lines))

    def __repr__(self) -> str:
        return f"<ApiServer {self.address} in {self.folder}>"

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.ports[0]}"

    # -- processes; these calls block, so in a Trio test they go through a thread

    def start(self, *, flags: Sequence[str] | None = None) -> None:
        """Start what does not run, and wait until the server is ready. ``flags`` stay for later starts."""
        if flags is not None:
            self.flags = tuple(flags)
        if self.etcd_process is None:
            self.etcd_process = self._open(require_binary("etcd"), self._etcd_flags(), "etcd.log")
            _wait(self.etcd_process, f"http://127.0.0.1:{self.ports[1]}/health", self.folder / "etcd.log", True)
        if self.process is None:
            binary = require_binary("kube-apiserver", "APISERVER")
            self.process = self._open(binary, self._server_flags(), "apiserver.log")
            _wait(self.process, f"{self.address}/readyz", self.folder / "apiserver.log", self.trust())

    def stop(self, *, etcd: bool = True) -> None:
        """Stop as an orderly shutdown does; ``etcd``: that, too."""
        self._end(signal.SIGTERM)
        if etcd:
            self._end_etcd()

    def kill(self, *, etcd: bool = False) -> None:
        """End the API server without a word, and etcd, too, if asked to."""
        self._end(signal.SIGKILL)
        if etcd:
            self._end_etcd()

    def pause(self) -> None:
        """The server says nothing more, and its connections stay open, until `resume`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def backup(self, name: str = "backup") -> Path:
        """All that is stored now, as a folder. The server is down meanwhile."""
        self.stop()
        kept = self.folder / name
        shutil.copytree(self.folder / "etcd", kept)
        self.start()
        return kept

    def restore(self, backup: Path) -> None:
        """Go back to a backup: what was written since never happened, and versions begin again from there."""
        self.kill(etcd=True)
        shutil.rmtree(self.folder / "etcd")
        shutil.copytree(backup, self.folder / "etcd")
        self.start()

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is not None:
            _end(process, how)

    def _end_etcd(self) -> None:
        process, self.etcd_process = self.etcd_process, None
        if process is not None:
            _end(process, signal.SIGKILL)

    def trust(self) -> ssl.SSLContext:
        """What its clients trust."""
        return ssl.create_default_context(cafile=self.folder / "ca.pem")

    def _etcd_flags(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in self.ports[1:])
        settings = {
            "name": "one",
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"one={peer}",
            "log-level": "warn",
            "unsafe-no-fsync": "true",
        }
        return [f"--{name}={value}" for name, value in settings.items()]

    def _server_flags(self) -> list[str]:
        settings = {
            "etcd-servers": f"http://127.0.0.1:{self.ports[1]}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self.ports[0],
            "cert-dir": self.folder,
            "tls-cert-file": self.folder / "apiserver.pem",
            "tls-private-key-file": self.folder / "apiserver.key",
            "client-ca-file": self.folder / "ca.pem",
            "token-auth-file": self.folder / "tokens.csv",
            "service-account-key-file": self.folder / "accounts.pem",
            "service-account-signing-key-file": self.folder / "accounts.key",
        }
        if not self.has_accounts:
            settings["disable-admission-plugins"] = "ServiceAccount"
        return [*(f"--{name}={value}" for name, value in settings.items()), *_FAST, *self.flags]

    def _open(self, binary: Path, flags: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                [str(binary), *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "GOGC": "200"},
            )

    # -- access

    def kubeconfig(self, user: str = ADMIN, *, token: str = "", server: str = "") -> Path:
        """A kubeconfig of a user, or of a token; ``server``: another address of it, such as that of a cable."""
        entry = {"token": token or f"{user}-token"}
        cluster = {"server": server or self.address, "certificate-authority": str(self.folder / "ca.pem")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": entry}],
        }
        path = self.folder / f"kubeconfig-{next(_NAMES)}"
        path.write_text(yaml.safe_dump(document))
        return path

    async def account_token(self, namespace: str, name: str, *, audiences: Sequence[str] = ()) -> str:
        """A token of a ServiceAccount, as the kubelet gets it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        spec = {"audiences": list(audiences)} if audiences else {}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token: str = (await self.ask("POST", path, body))["status"]["token"]
        return token

    # -- objects, as the administrator

    async def ask(self, method: str, path: str, body: object = None, *, user: str = ADMIN, **query: str) -> Object:
        """The answer, which is a success."""
        reply = await self.request(method, path, body, user=user, **query)
        assert reply.is_success, f"{method} {path}: {reply.status_code} {reply.text}"
        found: Object = reply.json()
        return found

    async def request(
        self, method: str, path: str, body: object = None, *, user: str = ADMIN, token: str = "", **query: str
    ) -> httpx.Response:
        """Any answer. PATCH is a merge patch, but with ``fieldManager`` in the query it is server-side apply."""
        kind = "application/json"
        if method == "PATCH":
            kind = "application/apply-patch+yaml" if "fieldManager" in query else "application/merge-patch+json"
        headers = {"authorization": f"Bearer {token or f'{user}-token'}", "content-type": kind}
        content = None if body is None else json.dumps(body).encode()
        async with httpx.AsyncClient(base_url=self.address, verify=self.trust(), timeout=30, trust_env=False) as client:
            while True:
                # Not cancelled: httpcore does not close the socket of a TLS handshake that is.
                with trio.CancelScope(shield=True):
                    reply = await client.request(method, path, content=content, headers=headers, params=query)
                if reply.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    return reply
                await trio.sleep(_WAITED)  # right after its start: "storage is (re)initializing"

    async def apply(self, *objects: Object) -> list[Object]:
        """Create each or change it, as `kubectl apply --server-side --force-conflicts`; their status is not written."""
        done = []
        for found in objects:
            query = {"fieldManager": "test", "force": "true"}
            done.append(await self.ask("PATCH", await self.path_of(found), found, **query))
        return done

    async def set_status(self, found: Object) -> Object:
        """Write the status of an object that is there."""
        path = f"{await self.path_of(found)}/status"
        return await self.ask("PATCH", path, {"status": found["status"]})

    async def delete(self, *objects: Object) -> None:
        for found in objects:
            await self.ask("DELETE", await self.path_of(found), gracePeriodSeconds="0")

    async def path_of(self, found: Object) -> str:
        """The path of an object, by what the server says of its kind."""
        root = _root(found["apiVersion"])
        resources = (await self.ask("GET", root))["resources"]
        resource = next(r for r in resources if r["kind"] == found["kind"] and "/" not in r["name"])
        namespace = found["metadata"].get("namespace", "default")
        within = f"/namespaces/{namespace}" if resource["namespaced"] else ""
        return f"{root}{within}/{resource['name']}/{found['metadata']['name']}"

    async def install(self, definitions: Iterable[Object]) -> None:
        """Apply CustomResourceDefinitions, and wait until their kinds are served."""
        definitions = list(definitions)
        async with trio.open_nursery() as nursery:
            for definition in definitions:
                nursery.start_soon(self.apply, definition)
        for definition in definitions:
            spec = definition["spec"]
            for version in (v["name"] for v in spec["versions"] if v["served"]):
                root = f"/apis/{spec['group']}/{version}"
                serves = partial(self._serves, root, spec["names"]["plural"])
                await eventually(serves, what=f"{spec['names']['kind']} is served")

    async def _serves(self, root: str, plural: str) -> bool:
        """Discovery names it, and it can be listed: the second comes a moment after the first."""
        reply = await self.request("GET", root)
        if not reply.is_success or plural not in {r["name"] for r in reply.json()["resources"]}:
            return False
        return (await self.request("GET", f"{root}/{plural}", limit="1")).is_success

    @asynccontextmanager
    async def namespace(self, name: str = "", *, labels: Mapping[str, str] | None = None) -> AsyncIterator[Namespace]:
        """A namespace for the length of the block; then all that is in it is deleted. Without a name, a new one."""
        made = Namespace(name or f"test-{next(_NAMES)}")
        await self.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": made.name, "labels": labels or {}}}
        )
        try:
            yield made
        finally:
            with trio.CancelScope(shield=True):
                await self.remove_namespace(made.name)

    async def remove_namespace(self, name: str) -> None:
        """What its controller would do."""
        async with trio.open_nursery() as nursery:
            for root, resource in await self._namespaced():
                path = f"{root}/namespaces/{name}/{resource}"
                nursery.start_soon(self.request, "DELETE", path, {"kind": "DeleteOptions", "gracePeriodSeconds": 0})
        await self.ask("DELETE", f"/api/v1/namespaces/{name}")
        found = await self.ask("GET", f"/api/v1/namespaces/{name}")
        await self.ask("PUT", f"/api/v1/namespaces/{name}/finalize", {**found, "spec": {"finalizers": []}})

    async def _namespaced(self) -> list[tuple[str, str]]:
        """Paths and names of all kinds that are in namespaces and can be deleted all at once."""
        groups = (await self.ask("GET", "/apis"))["groups"]
        roots = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
        return [
            (root, resource["name"])
            for root in roots
            for resource in (await self.ask("GET", root))["resources"]
            if resource["namespaced"] and "deletecollection" in resource["verbs"]
        ]


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, verify: ssl.SSLContext | bool) -> None:
    """Until it answers that it is well."""
    ends = time.monotonic() + START_SECONDS
    with httpx.Client(verify=verify, timeout=5, trust_env=False) as client:
        while True:
            with suppress(httpx.TransportError):
                if client.get(url).is_success:
                    return
            ended = process.poll() is not None
            if ended or time.monotonic() > ends:
                _end(process, signal.SIGKILL)
                raise AssertionError(f"it {'ended' if ended else 'is not ready'}: {log.read_text()[-3000:]}")
            time.sleep(_WAITED)


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a paused one ends, too
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = ApiServer(Path(folder))
        try:
            server.start()
            print(server.kubeconfig(), flush=True)
            signal.sigwait([signal.SIGINT, signal.SIGTERM])
        finally:
            server.stop()


if __name__ == "__main__":
    main()
