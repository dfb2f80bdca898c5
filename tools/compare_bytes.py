"""Compares the bytes that two revisions of mesh-pilot send: for every golden scenario, and for random meshes.

    python tools/compare_bytes.py --old v1.2 --new HEAD

Each revision runs as the program that it is: ``mesh-pilot discovery`` reads files, and an xDS client over Delta ADS reads
bytes. No module of either revision is imported here, so that modules and classes may be moved and renamed between them. The
scenarios and the generator of meshes are those of this checkout; both revisions read the same files.

Each resource is compared by type and name, byte by byte. Not compared are versions, nonces, logs, and the private key
and certificate chain that each process issues to a workload anew. Exit code: 0 for the same bytes, 1 for differences, 2 where a revision
could not be run.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import hashlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import grpc
import yaml
from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import json_format

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.server import ServerError, checkout  # noqa: E402
from tests.golden import adsdump  # noqa: E402
from tests.support import golden, kube_objects, pool  # noqa: E402
from tests.support.certificates import write_certificates  # noqa: E402
from tests.support.galley import Galley  # noqa: E402

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
PREFIX = "type.googleapis.com/envoy."
CLUSTER = PREFIX + "config.cluster.v3.Cluster"
ENDPOINT = PREFIX + "config.endpoint.v3.ClusterLoadAssignment"
LISTENER = PREFIX + "config.listener.v3.Listener"
ROUTE = PREFIX + "config.route.v3.RouteConfiguration"
VIRTUAL_HOST = PREFIX + "config.route.v3.VirtualHost"
EXTENSION = PREFIX + "config.core.v3.TypedExtensionConfig"
SECRET = PREFIX + "extensions.transport_sockets.tls.v3.Secret"

SECONDS = 120.0
"""How long a revision may take to start, and to answer one proxy: a bound for what hangs, not a measure."""

SIZES = (8, 16, 32, 64)
"""How many objects are drawn for a random mesh."""

RANDOM_PROXIES: list[dict[str, Any]] = yaml.safe_load("""
- {name: web, ip: 10.1.1.1, namespace: shop, labels: {app: web, tier: front, version: v1}}
- {name: api, ip: 10.1.2.2, namespace: other, labels: {app: api}, locality: eu/eu-1,
   metadata: {DNS_CAPTURE: "true", DNS_AUTO_ALLOCATE: "true"}}
- {name: free, ip: 10.1.3.1, namespace: shop, labels: {app: free}, metadata: {INTERCEPTION_MODE: NONE, NETWORK: near}}
- {name: root, ip: 10.1.5.1, namespace: istio-system, labels: {tier: front}}
- {name: split, ip: 10.1.1.2, namespace: shop, labels: {app: web}, metadata: {VIRTUAL_HOSTS: split}}
- {name: lazy, ip: 10.1.2.1, namespace: other, labels: {app: web}, metadata: {CLUSTERS: on-demand}}
- {name: edge, node_type: router, ip: 10.1.9.9, namespace: shop, labels: {app: edge}}
- {name: grpc, ip: 10.1.4.1, namespace: shop, labels: {app: web}, metadata: {GENERATOR: grpc}}
""")
"""The proxies of every random mesh, in the form of ``proxies.yaml``."""

GRPC_ASKS = (
    "xds.istio.io/grpc/lds/inbound/10.1.4.1:80",
    *(f"{host}:{port}" for host in pool.HOSTS[:3] for port in (80, 81)),
)

FORKER = """
import json, os, pkgutil, sys
import mesh_pilot.cli
for module in pkgutil.walk_packages(mesh_pilot.__path__, "mesh_pilot."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
print("loaded", mesh_pilot.__file__, flush=True)
for line in iter(sys.stdin.readline, ""):
    child = os.fork()
    if not child:
        mesh_pilot.cli.main(json.loads(line))
    print("started", child, flush=True)
    print("ended", os.waitpid(child, 0)[1], flush=True)
"""
"""A process that has loaded one revision and becomes ``mesh-pilot``, as often as it is asked to: all imports cost more
than a small mesh. It takes lists of arguments as JSON on its standard input, one at a time."""

Received = dict[tuple[str, str], bytes]
"""The resources that one proxy was sent, encoded, by type and name."""


class RevisionError(Exception):
    """A revision that does not do what it is asked to, with its last words."""


@attrs.frozen
class Case:
    """A mesh and the proxies to look at it with."""

    name: str
    arguments: tuple[str, ...]
    proxies: Sequence[dict[str, Any]]
    """In the form of ``proxies.yaml``; ``grpc`` is what a proxyless client asks for."""


# -- what both revisions read


def golden_cases(folder: Path, names: Iterable[str], kubernetes: str) -> Iterator[Case]:
    """The golden scenarios. ``kubernetes`` is the address of a Galley that serves ``kube-services``; without one that
    scenario is left out."""
    for name in names:
        scenario = golden.ROOT / name
        mesh, networks = scenario / "mesh.yaml", scenario / "networks.yaml"
        arguments = [f"--mesh-config={mesh if mesh.exists() else golden.ROOT / 'mesh.default.yaml'}"]
        if networks.exists():
            arguments.append(f"--networks-config={networks}")
        if (scenario / "kube").exists():
            if not kubernetes:
                continue
            arguments.append(f"--mcp-server={kubernetes}")
        else:
            config = folder / name
            config.mkdir()
            shutil.copy(scenario / "config.yaml", config)
            arguments.append(f"--config-dir={config}")
        yield Case(name, tuple(arguments), list(_with_split(golden.proxies(name))))


def _with_split(proxies: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each proxy and, of Envoys, one more that gets its virtual hosts one by one."""
    for entry in proxies:
        yield entry
        if not entry.get("grpc"):
            metadata = (entry.get("metadata") or {}) | {"VIRTUAL_HOSTS": "split"}
            yield entry | {"name": f"{entry['name']}, split", "id-name": entry.get("id-name", entry["name"]),
                           "metadata": metadata}  # fmt: skip


def random_cases(folder: Path, seeds: Iterable[int]) -> Iterator[Case]:
    """A mesh for each seed, of the kinds of ``tests/support/pool.py``."""
    credentials = [write_certificates(_made(folder / f"ca-{n}"), "leaf") for n in (1, 2)]
    certificates = [(c.certificate.read_bytes(), c.key.read_bytes(), c.ca.read_bytes()) for c in credentials]
    proxies = [entry | ({"grpc": GRPC_ASKS} if entry["name"] == "grpc" else {}) for entry in RANDOM_PROXIES]
    for seed in seeds:
        rng = random.Random(seed)
        here = _made(folder / f"mesh-{seed}")
        mesh, networks = "{}", "networks: {}"
        objects: dict[tuple[str, ...], str] = {}
        kinds = (*rng.choice(pool.THEMES), *pool.OFTEN)
        for _ in range(rng.choice(SIZES)):
            match kind := rng.choice(kinds):
                case "mesh":
                    mesh = rng.choice(pool.MESHES)
                case "networks":
                    networks = rng.choice(pool.NETWORKS)
                case "key set":
                    continue  # the keys at a URL are those of ``key_server``
                case "secret":
                    text = _secret(rng, certificates)
                case _:
                    text = pool.KINDS[kind](lambda *options: rng.choice(options))
            if kind not in ("mesh", "networks"):
                made = yaml.safe_load(text)
                meta = made["metadata"]
                objects[made["kind"], meta["namespace"], meta["name"]] = text.replace("https://a.example.com", KEYS_AT)
        (_made(here / "config") / "all.yaml").write_text("\n---\n".join(objects.values()), encoding="utf-8")
        (here / "mesh.yaml").write_text(mesh, encoding="utf-8")
        (here / "networks.yaml").write_text(networks, encoding="utf-8")
        arguments = (f"--config-dir={here}/config", f"--mesh-config={here}/mesh.yaml")
        yield Case(f"mesh {seed}", (*arguments, f"--networks-config={here}/networks.yaml"), proxies)


def _secret(rng: random.Random, certificates: Sequence[tuple[bytes, bytes, bytes]]) -> str:
    chain, key, authorities = rng.choice(certificates)
    pair, roots = {"tls.crt": chain, "tls.key": key}, {"ca.crt": authorities}
    parts: dict[str, bytes] = rng.choice((pair, roots, pair | roots))
    made = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": rng.choice(("one", "two", "two-cacert")), "namespace": "shop"},
        "type": "Opaque",
        "data": {name: base64.b64encode(value).decode() for name, value in parts.items()},
    }
    return json.dumps(made)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


KEYS_AT = "http://keys.test"


class _KeyServer(BaseHTTPRequestHandler):
    """The proxy through which both revisions ask for JSON Web Key Sets: nothing leaves the machine, and what is
    answered is always the same. There are keys of issuer ``one``, and of no other."""

    def do_GET(self) -> None:
        known = self.path == f"{KEYS_AT}/one"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(b'{"keys": [{"kty": "oct", "kid": "one", "k": "AAAA"}]}' if known else b"")

    def do_CONNECT(self) -> None:
        self.send_error(502)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def key_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _KeyServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def kubernetes(folder: Path) -> Iterator[str]:
    """A Galley with the objects of ``kube-services``; its address, or nothing without ``grpc_tools``."""
    try:
        from tests.support.protos import _compile, message_classes

        galley = Galley(message_classes(_compile(folder)))
    except ImportError:
        yield ""
        return
    text = (golden.ROOT / "kube-services" / "config.yaml").read_text(encoding="utf-8")
    for document in yaml.load_all(text, kube_objects.LOADER):
        meta, kind = document["metadata"], document["kind"]
        collection = f"k8s/core/v1/{kind.lower().removesuffix('s')}s"
        type_name = "k8s.io.api.core.v1." + {"Service": "ServiceSpec", "Node": "NodeSpec"}.get(kind, kind)
        name = "/".join(filter(None, (meta.get("namespace", ""), meta["name"])))
        texts = {key: meta[key] for key in ("labels", "annotations") if meta.get(key)}
        galley.put(collection, name, type_name, bytes(kube_objects._body(document)), **texts)
    with galley.serving(0) as address:
        yield address


# -- a revision at work


class Revision:
    """A revision that runs one mesh after the other. State: its process, and the plane that runs now."""

    def __init__(self, name: str, tree: Path, scratch: Path, proxy: str) -> None:
        """``tree`` is its checkout; it fetches keys through the HTTP proxy ``proxy``."""
        self.name = name
        self._scratch = _made(scratch)
        self._log = scratch / "log"
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        environment |= {
            "PYTHONPATH": str(tree / "src"),
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "HTTP_PROXY": proxy,
            "HTTPS_PROXY": proxy,
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", FORKER],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=scratch,
            )  # fmt: skip
        loaded = self._line("loaded")
        if not loaded or not Path(loaded).is_relative_to(tree):
            raise RevisionError(f"{name}: not loaded from {tree}: {loaded or self._last_words()}")
        self._planes = 0

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self, start: str, *ends: str) -> str:
        """The rest of the next line that begins so; empty where the process ends, or one that begins with an ``ends``
        comes first."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line.removeprefix(start).strip() or " "
            if line.startswith(ends or ("\0",)):
                return ""
        return ""

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-5:])

    @contextmanager
    def running(self, arguments: Iterable[str], authority: Path) -> Iterator[grpc.Channel]:
        """A ready control plane with these flags, and a channel to it."""
        self._planes += 1
        socket = self._scratch / f"{self._planes}.sock"
        options = ["discovery", f"--grpc-addr=unix://{socket}", f"--ca-dir={authority}", "--log-level=error", *arguments]
        options += ["--http-addr=127.0.0.1:0", "--monitoring-addr=127.0.0.1:0"]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        child = int(self._line("started"))
        watchdog = threading.Timer(SECONDS, os.kill, (child, signal.SIGKILL))
        watchdog.start()
        ready = self._line("ready after", "ended")
        watchdog.cancel()
        if not ready:
            raise RevisionError(self._last_words())
        try:
            limits = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
            with grpc.insecure_channel(f"unix:{socket}", options=limits) as channel:
                yield channel
        finally:
            os.kill(child, signal.SIGKILL)
            self._line("ended")

    def render(self, case: Case, authority: Path) -> dict[str, Received]:
        """What each proxy of a case is sent, by the proxy's name. Raises RevisionError."""
        with self.running(case.arguments, authority) as channel:
            try:
                return {entry["name"]: receive(channel, entry) for entry in case.proxies}
            except grpc.RpcError as error:
                raise RevisionError(f"{error.code()}: {error.details()}\n{self._last_words()}") from None  # type: ignore[attr-defined]


class Client:
    """One Delta ADS stream. State: the resources that came, None for those that are not there, and all references."""

    def __init__(self, channel: grpc.Channel, node: base_pb2.Node) -> None:
        self._node = node
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._responses = channel.stream_stream(ADS)(iter(self._requests.get, None), timeout=SECONDS)
        self.has: dict[tuple[str, str], bytes | None] = {}

    def ask(self, type_url: str, names: Iterable[str] = (), *, wildcard: bool = False) -> None:
        """Subscribe, and wait for the answer: each name comes, or comes as not there."""
        asked = sorted(set(names))
        if not asked and not wildcard:
            return
        self._send(type_url=type_url, node=self._node, resource_names_subscribe=asked)
        for data in self._responses:
            response = discovery_pb2.DeltaDiscoveryResponse.FromString(data)
            self._send(type_url=response.type_url, response_nonce=response.nonce)
            self.has |= {(response.type_url, r.name): r.resource.value for r in response.resources}
            self.has |= {(response.type_url, name): None for name in response.removed_resources}
            if response.type_url == type_url and all((type_url, name) in self.has for name in asked):
                return

    def close(self) -> None:
        self._requests.put(None)
        self._responses.cancel()

    def references(self, *types: str) -> References:
        found = [references(t, body) for (t, _), body in self.has.items() if t in types and body is not None]
        return References(*(frozenset().union(*(getattr(r, a.name) for r in found)) for a in attrs.fields(References)))

    def _send(self, **fields: Any) -> None:
        self._requests.put(discovery_pb2.DeltaDiscoveryRequest(**fields).SerializeToString())


@attrs.frozen
class References:
    """The names that resources refer to."""

    endpoints: frozenset[str]
    routes: frozenset[str]
    secrets: frozenset[str]
    extensions: frozenset[str]
    clusters: frozenset[str]
    tables_apart: frozenset[str]
    """Route tables whose virtual hosts are resources of their own."""


@lru_cache(maxsize=100_000)
def references(type_url: str, body: bytes) -> References:
    expander = adsdump.Expander()
    document = expander.msg(adsdump.find_class(type_url).FromString(body))
    endpoints = {document.get("eds_cluster_config", {}).get("service_name") or document["name"]} if (
        type_url == CLUSTER and document.get("type") == "EDS"
    ) else ()  # fmt: skip
    return References(
        endpoints=frozenset(endpoints),
        routes=frozenset(expander.routes),
        secrets=frozenset(expander.secrets),
        extensions=frozenset(expander.ext),
        clusters=frozenset(golden.clusters_of(document)) if type_url == ROUTE else frozenset(),
        tables_apart=frozenset({document["name"]} if type_url == ROUTE and "vhds" in document else ()),
    )


def receive(channel: grpc.Channel, entry: dict[str, Any]) -> Received:
    """Everything that a proxy of ``proxies.yaml`` is sent."""
    client = Client(channel, _node(golden.node_of(entry)))
    try:
        if entry.get("grpc"):
            client.ask(LISTENER, entry["grpc"])
            client.ask(ROUTE, client.references(LISTENER).routes)
            client.ask(CLUSTER, client.references(ROUTE).clusters)
            client.ask(ENDPOINT, client.references(CLUSTER).endpoints)
        else:
            client.ask(CLUSTER, wildcard=True)
            client.ask(ENDPOINT, client.references(CLUSTER).endpoints)
            client.ask(LISTENER, wildcard=True)
            found = client.references(LISTENER)
            client.ask(ROUTE, found.routes)
            client.ask(VIRTUAL_HOST, wildcard=bool(client.references(ROUTE).tables_apart))
            client.ask(EXTENSION, found.extensions)
            credentials = [f"kubernetes://{name}" for name in pool.SECRETS]
            client.ask(SECRET, client.references(LISTENER, CLUSTER).secrets.union(credentials))
    finally:
        client.close()
    return {key: _without_issued(*key, body) for key, body in client.has.items() if body is not None}


def _node(node: golden.Node) -> base_pb2.Node:
    found = base_pb2.Node(id=node.id, cluster=node.cluster, user_agent_name="envoy")
    json_format.ParseDict(node.metadata, found.metadata)
    region, zone, sub_zone, *_ = [*node.locality.split("/"), "", "", ""]
    found.locality.region, found.locality.zone, found.locality.sub_zone = region, zone, sub_zone
    return found


def _without_issued(type_url: str, name: str, body: bytes) -> bytes:
    """A resource without the key and the chain that were issued for it just now."""
    if type_url != SECRET or name != "default":
        return body
    secret = secret_pb2.Secret.FromString(body)
    for part in (secret.tls_certificate.certificate_chain, secret.tls_certificate.private_key):
        part.inline_bytes = b"issued" if part.inline_bytes else b""
    return secret.SerializeToString(deterministic=True)


# -- the comparison


def differences(old: Received, new: Received) -> Iterator[tuple[tuple[str, str], str]]:
    """What differs: type and name, and how, for people."""
    for key in sorted(old.keys() | new.keys()):
        if key not in new:
            yield key, "only the old revision sends it"
        elif key not in old:
            yield key, "only the new revision sends it"
        elif old[key] != new[key]:
            yield key, explained(key[0], old[key], new[key])


def explained(type_url: str, old: bytes, new: bytes) -> str:
    """The first lines in which two resources differ."""
    texts = [json.dumps(_document(type_url, body), indent=1).splitlines() for body in (old, new)]
    lines = list(difflib.unified_diff(*texts, "old", "new", n=3, lineterm=""))
    if lines:
        return "\n".join(lines[:20])
    at = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    around = slice(max(at - 20, 0), at + 20)
    return f"the same content, encoded differently from byte {at} on:\n-{old[around]!r}\n+{new[around]!r}"


def _document(type_url: str, body: bytes) -> Any:
    return adsdump.Expander().msg(adsdump.find_class(type_url).FromString(body))


@attrs.define
class Report:
    """What was compared so far."""

    cases: int = 0
    resources: Counter[str] = attrs.Factory(Counter)
    """By type, of the new revision."""
    digest: Any = attrs.Factory(hashlib.sha256)
    """Of all bytes of the new revision, in order."""
    found: dict[str, list[str]] = attrs.Factory(dict)
    """Where, by type and how it differs."""

    def add(self, case: Case, old: dict[str, Received], new: dict[str, Received]) -> None:
        self.cases += 1
        for proxy, received in new.items():
            for (type_url, name), body in sorted(received.items()):
                self.resources[type_url.rpartition(".")[2]] += 1
                self.digest.update(hashlib.sha256(f"{type_url} {name}".encode()).digest() + hashlib.sha256(body).digest())
            for (type_url, name), how in differences(old[proxy], received):
                self.note(f"{type_url.rpartition('.')[2]}: {how}", f"{case.name}, {proxy}: {name}")

    def note(self, how: str, where: str) -> None:
        if how not in self.found:
            print(f"\nDIFFERS {where}\n{how}", flush=True)
        self.found.setdefault(how, []).append(where)


def compare(cases: Iterable[Case], old: Revision, new: Revision, authority: Path) -> Report:
    """Have both revisions render each case. Raises RevisionError where neither renders any."""
    report, failures = Report(), []
    for case in cases:
        rendered, errors = [], []
        for revision in (old, new):
            try:
                rendered.append(revision.render(case, authority))
            except RevisionError as error:
                errors.append(f"{revision.name}: {error}")
        if len(errors) == 2:
            failures.append(f"{case.name}: {errors[1]}")
        elif errors:
            report.note(errors[0], case.name)
        else:
            report.add(case, *rendered)
            if sys.stdout.isatty():
                print(f"\r{report.cases} {case.name:40}", end="", flush=True)
    for failure in failures:
        print(f"taken by neither revision: {failure}")
    if not report.resources:
        raise RevisionError("nothing was compared")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True, help="git revision, or the folder of a checkout")
    parser.add_argument("--new", default=str(ROOT), help="git revision, or the folder of a checkout (default: this one)")
    parser.add_argument("--meshes", type=int, default=200, metavar="N", help="random meshes (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them (default: 0)")
    parser.add_argument("--scenario", action="append", help="only this golden scenario; may be repeated")
    args = parser.parse_args()
    adsdump.load_all_protos()
    began = time.monotonic()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bytes-")))
        proxy = stack.enter_context(key_server())
        try:
            old, new = (
                Revision(name, _tree(stack, name), scratch / side, proxy)
                for side, name in (("old", args.old), ("new", args.new))
            )
            for revision in (old, new):
                stack.callback(revision.close)
            galley = stack.enter_context(kubernetes(_made(scratch / "protos")))
            scenarios = args.scenario or golden.scenarios()
            cases = [*golden_cases(_made(scratch / "golden"), scenarios, galley)]
            cases += random_cases(scratch / "random", range(args.seed, args.seed + args.meshes))
            report = compare(cases, old, new, scratch / "ca")
        except (RevisionError, ServerError) as error:
            print(f"compare_bytes: {error}", file=sys.stderr)
            return 2
    counts = ", ".join(f"{count} {kind}" for kind, count in report.resources.most_common())
    print(f"\n{report.cases} meshes in {time.monotonic() - began:.0f} s: {counts}; sha256 {report.digest.hexdigest()[:16]}")
    for how, places in report.found.items():
        print(f"{len(places)} x, such as {places[0]}: {how.splitlines()[0]}")
    print(f"{sum(map(len, report.found.values()))} resources differ" if report.found else "no differences")
    return 1 if report.found else 0


def _tree(stack: ExitStack, name: str) -> Path:
    """The checkout of a revision; one that is there already is used as it is."""
    folder = Path(name).resolve()
    return folder if (folder / "src" / "mesh_pilot").is_dir() else stack.enter_context(checkout(name)).resolve()


if __name__ == "__main__":
    sys.exit(main())
