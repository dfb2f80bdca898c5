"""A stand-in for a node with its kubelet: Pods in network namespaces, on a bridge, as processes of this machine.

    node = Node(server, network, folder, {"echo-basic": [binary]}, mounts={})
    await nursery.start(node.run)

It knows what the conformance suite's Pods and our own have: images by name, environment, files, native sidecars, and
one HTTP probe a container, after which the container stays ready. The Go program ``kubelet`` next to this answers
exec and logs. In place of name servers, the Services are in every container's hosts file, and in place of kube-proxy
the sidecars know them.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv4Address, IPv4Interface
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from tests.support.apiserver import ADMIN, ApiServer, Object
from tests.support.binaries import require_binary
from tests.support.command import COMMAND
from tests.support.containers import Network, container
from tests.support.kubernetes_sample import python_path
from tests.support.namespaces import ROOT

NAME = "node-1"
BRIDGE = IPv4Interface("10.45.0.1/16")
KUBELET_PORT = 10250
_PAUSE = 0.3


async def follow(server: ApiServer, path: str, changed: Callable[[str, Object], Awaitable[None]], **query: str) -> None:
    """Call for each object that is there, and for each change from then on, with ADDED, MODIFIED or DELETED."""
    headers = {"authorization": f"Bearer {ADMIN}-token"}
    async with (
        httpx.AsyncClient(base_url=server.address, verify=server.trust(), timeout=None, trust_env=False) as client,
        client.stream("GET", path, headers=headers, params={"watch": "true", **query}) as reply,
    ):
        async for line in reply.aiter_lines():
            event = json.loads(line)
            await changed(event["type"], event["object"])
    raise AssertionError(f"the watch of {path} ended")


@attrs.frozen
class Place:
    """Where a Pod runs."""

    network: Network
    address: IPv4Address
    folder: Path


@attrs.define(eq=False)
class Node:
    """State: the Pods that run, and the addresses of Services."""

    server: ApiServer
    network: Network
    """Of the node itself; a bridge there joins the Pods."""
    folder: Path
    """Of each container: ``NAMESPACE/POD/CONTAINER``."""
    images: Mapping[str, Sequence[str]]
    """What starts a container, by the last part of its image without the tag. A Pod of another image waits forever."""
    mounts: Mapping[str, Path]
    """Files that are in images."""
    _pods: dict[str, trio.CancelScope] = attrs.field(factory=dict, init=False)
    _hosts: dict[tuple[str, str], str] = attrs.field(factory=dict, init=False)
    """Addresses of Services by namespace and name."""
    _files: dict[Path, str] = attrs.field(factory=dict, init=False)
    """Hosts files, with the namespaces of their Pods."""
    _numbers: count[int] = attrs.field(factory=partial(count, 2), init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run Pods until it is cancelled; then all of them end. Started once the node is there."""
        # Without an address of its own the bridge has that of a Pod, until this ends.
        self.network.run("ip", "link", "add", "pods", "address", "02:00:0a:2d:00:01", "type", "bridge")
        self.network.run("ip", "address", "add", str(BRIDGE), "dev", "pods")
        self.network.run("ip", "link", "set", "pods", "up")
        await self.server.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})
        status = {
            "addresses": [{"type": "InternalIP", "address": str(BRIDGE.ip)}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            "conditions": [_condition("Ready")],
        }
        await self.server.ask("PATCH", f"/api/v1/nodes/{NAME}/status", {"status": status})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, self.server, "/api/v1/services", self._service_changed)
            nursery.start_soon(follow, self.server, "/api/v1/pods", partial(self._pod_changed, nursery))
            task_status.started()

    # -- names

    async def _service_changed(self, event: str, service: Object) -> None:
        key = service["metadata"]["namespace"], service["metadata"]["name"]
        address = service["spec"].get("clusterIP")
        if event == "DELETED" or address in (None, "None"):
            self._hosts.pop(key, None)
        else:
            self._hosts[key] = address
        for path in self._files:
            self._write_hosts(path)

    def _write_hosts(self, path: Path) -> None:
        lines = ["127.0.0.1 localhost"]
        for (namespace, name), address in self._hosts.items():
            names = [f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}.svc", f"{name}.{namespace}"]
            lines.append(" ".join([address, *names, *((name,) if namespace == self._files[path] else ())]))
        path.write_text("\n".join(lines) + "\n")

    # -- the life of a Pod

    async def _pod_changed(self, nursery: trio.Nursery, event: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if event == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            if uid in self._pods:
                self._pods[uid].cancel()
        elif uid not in self._pods:
            self._pods[uid] = trio.CancelScope()
            nursery.start_soon(self._live, pod, self._pods[uid])

    async def _live(self, pod: Object, scope: trio.CancelScope) -> None:
        path = _path(pod)
        with scope:
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
            bound = await self.server.request("POST", f"{path}/binding", body | {"target": {"name": NAME}})
            assert bound.is_success or bound.status_code in (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT), bound.text
            async with self._place(pod) as place:
                pod["spec"]["nodeName"] = NAME
                pod["status"] |= {
                    "podIP": str(place.address),
                    "podIPs": [{"ip": str(place.address)}],
                    "hostIP": str(BRIDGE.ip),
                    "startTime": _now(),
                }
                async with trio.open_nursery() as nursery:
                    for found in pod["spec"].get("initContainers", ()):
                        await self._begin(nursery, pod, found, place, waits=True)
                    await self._report(pod, "Running", ready=False)
                    for found in pod["spec"]["containers"]:
                        await self._begin(nursery, pod, found, place, waits=False)
                    await self._report(pod, "Running", ready=True)
                    await trio.sleep_forever()
        if scope.cancelled_caught:
            await self.server.request("DELETE", path, gracePeriodSeconds="0")

    async def _report(self, pod: Object, phase: str, *, ready: bool) -> None:
        kinds = ("PodScheduled", "Initialized", *(("ContainersReady", "Ready") if ready else ()))
        status = {**pod["status"], "phase": phase, "conditions": [_condition(kind) for kind in kinds]}
        reply = await self.server.request("PATCH", f"{_path(pod)}/status", {"status": status})
        assert reply.is_success or reply.status_code == httpx.codes.NOT_FOUND, reply.text

    @asynccontextmanager
    async def _place(self, pod: Object) -> AsyncIterator[Place]:
        """A network namespace, on the bridge."""
        number = next(self._numbers)
        name, link = f"{self.network.name}-{number}", f"pod{number}"
        place = Place(Network(name), BRIDGE.network[number], self.folder / "/".join(_names(pod)))
        with trio.CancelScope(shield=True):
            await _ip(f"netns add {name}")
        try:
            await _ip(f"link add {link} type veth peer name eth0 netns {name}")
            await _ip(f"link set {link} master pods up")
            await _ip(f"-n {name} address add {place.address}/{BRIDGE.network.prefixlen} dev eth0")
            await _ip(f"-n {name} link set lo up")
            await _ip(f"-n {name} link set eth0 up")
            await _ip(f"-n {name} route add default via {BRIDGE.ip}")
            await _run([*place.network.enter, "sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=0"])
            yield place
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_end, name)
                await _ip(f"netns del {name}")

    # -- containers

    async def _begin(self, nursery: trio.Nursery, pod: Object, found: Object, place: Place, *, waits: bool) -> None:
        """Start a container, and wait until its probe answers, or, without one, until an init container ended."""
        argv, env, folder = await self._container(pod, found, place)
        log = folder / "log"
        log.touch()
        (folder / "enter.json").write_text(json.dumps({"enter": argv, "env": [f"{k}={v}" for k, v in env.items()]}))
        image = self.images.get(found["image"].rpartition("/")[2].partition(":")[0])
        if image is None:
            await trio.sleep_forever()
        argv = [*argv, *_user(found), *image, *found.get("args", ())]
        if waits and found.get("restartPolicy") != "Always":
            await _process(argv, env, log)
            return
        nursery.start_soon(_process, argv, env, log)
        probe = (found.get("readinessProbe") or {}).get("httpGet")
        if probe is not None:
            await _answers(f"http://{place.address}:{probe['port']}{probe['path']}")

    async def _container(self, pod: Object, found: Object, place: Place) -> tuple[list[str], dict[str, str], Path]:
        """What a command begins with to run in a container, its environment, and the folder of the container."""
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
        mounts = dict(self.mounts)
        for mount in found.get("volumeMounts", ()):
            if Path(mount["mountPath"]) in Path(sys.base_prefix).parents:
                continue  # CoreDNS's configuration at /root would cover a Python that is there
            volume = place.folder / "volumes" / mount["name"]
            if not volume.exists():
                volume.mkdir(parents=True)
                volume.chmod(0o777)
                await self._fill(pod, volumes[mount["name"]], volume)
            mounts[mount["mountPath"]] = volume
        folder = place.folder / found["name"]
        programs = [Path(sys.prefix), Path(sys.base_prefix), ROOT, require_binary("envoy").parent]
        prefix = container(folder, mounts=mounts, hosts={}, hostname=_names(pod)[1], programs=programs)
        self._files[folder / "root/etc/hosts"] = pod["metadata"]["namespace"]
        self._write_hosts(folder / "root/etc/hosts")
        tools = [Path(COMMAND[0]).parent, *(Path(image[0]).parent for image in self.images.values()), "/usr/sbin"]
        env = {"PATH": ":".join([*map(str, tools), "/usr/bin:/bin"]), **python_path(), **_environment(pod, found)}
        return [*place.network.enter, *prefix], env, folder

    async def _fill(self, pod: Object, volume: Object, folder: Path) -> None:
        """Write the files of a volume, once what it refers to is there."""
        namespace = f"/api/v1/namespaces/{pod['metadata']['namespace']}"
        for source in volume.get("projected", {}).get("sources", [volume]):
            match source:
                case {"secret": secret}:
                    data = (await self._wait("GET", f"{namespace}/secrets/{secret['secretName']}"))["data"]
                    _write(folder, {k: base64.b64decode(v) for k, v in data.items()}, secret)
                case {"configMap": config}:
                    data = (await self._wait("GET", f"{namespace}/configmaps/{config['name']}"))["data"]
                    _write(folder, {k: v.encode() for k, v in data.items()}, config)
                case {"downwardAPI": downward}:
                    for item in downward["items"]:
                        value = _field(pod, item["fieldRef"]["fieldPath"])
                        (folder / item["path"]).write_text(value)
                case {"serviceAccountToken": token}:
                    account = f"{namespace}/serviceaccounts/{pod['spec']['serviceAccountName']}"
                    spec = {"audiences": [token["audience"]]} if "audience" in token else {}
                    answer = await self._wait("POST", f"{account}/token", {"spec": spec})
                    (folder / token["path"]).write_text(answer["status"]["token"])
                case {"emptyDir": _}:
                    pass
                case _:
                    raise AssertionError(f"a volume of an unknown kind: {source}")

    async def _wait(self, method: str, path: str, body: object = None) -> Object:
        """The answer, once there is a good one: a Pod waits for what it refers to, if need be as long as it lives."""
        while True:
            reply = await self.server.request(method, path, body)
            if reply.is_success:
                answer: Object = reply.json()
                return answer
            await trio.sleep(_PAUSE)


def _write(folder: Path, data: Mapping[str, bytes], source: Object) -> None:
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    for item in items:
        (folder / item["path"]).write_bytes(data[item["key"]])


def _environment(pod: Object, found: Object) -> dict[str, str]:
    """The variables of a container, with what Kubernetes puts in for references."""
    env = {}
    for variable in found.get("env", ()):
        match variable.get("valueFrom"):
            case {"fieldRef": {"fieldPath": path}}:
                env[variable["name"]] = _field(pod, path)
            case {"resourceFieldRef": _}:
                env[variable["name"]] = "2"
            case _:
                env[variable["name"]] = variable.get("value", "")
    return env


def _field(pod: Object, path: str) -> str:
    """A field of a Pod; of labels and annotations, a line each."""
    value: Any = pod
    for name in path.split("."):
        value = value.get(name, {})
    return value if isinstance(value, str) else "".join(f"{k}={json.dumps(v)}\n" for k, v in value.items())


def _user(found: Object) -> Sequence[str]:
    """What a command begins with to run as the container's user."""
    security = found.get("securityContext", {})
    if not (user := security.get("runAsUser")):
        return ()
    return ("setpriv", "--reuid", f"{user}", "--regid", f"{security['runAsGroup']}", "--clear-groups")


async def _process(argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    """Run a process to its end; the log has the time before each of its lines."""
    process = await trio.lowlevel.open_process(
        list(argv), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        rest = b""
        with log.open("ab", buffering=0) as file:
            async for chunk in process.stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                now = _now().encode()
                file.write(b"".join(now + b" " + line + b"\n" for line in lines))
            file.write(_now().encode() + f" ended: {await process.wait()}\n".encode())
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def _answers(url: str) -> None:
    async with httpx.AsyncClient(timeout=3, trust_env=False) as client:
        while True:
            with suppress(httpx.HTTPError):
                if (await client.get(url)).is_success:
                    return
            await trio.sleep(_PAUSE)


def _end(namespace: str) -> None:
    """Kill whatever runs there; one that is killed may have started another meanwhile."""
    command = ["ip", "netns", "pids", namespace]
    while pids := subprocess.run(command, capture_output=True, text=True, check=True).stdout.split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


async def _ip(command: str) -> None:
    await _run(["ip", *command.split()])


async def _run(command: Sequence[str]) -> None:
    done = await trio.run_process(list(command), capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"


def _names(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _path(pod: Object) -> str:
    namespace, name = _names(pod)
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _condition(kind: str) -> Object:
    return {"type": kind, "status": "True", "lastTransitionTime": _now()[:19] + "Z"}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
