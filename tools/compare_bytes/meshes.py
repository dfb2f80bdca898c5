"""The configuration that both revisions read: the golden scenarios, and random meshes."""

from __future__ import annotations

import base64
import json
import random
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import yaml

from mesh_pilot.api.k8s.io.api.core import v1 as core
from tests.support import golden, kube_objects, pool
from tests.support.certificates import write_certificates
from tests.support.galley import Galley

SIZES = (8, 16, 32, 64)
"""Numbers of objects drawn for a random mesh."""

EXTENSION_PATCHES = """
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: extension, namespace: istio-system}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match:
      context: SIDECAR_OUTBOUND
      listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}
    patch:
      operation: INSERT_FIRST
      value:
        name: fetched
        config_discovery:
          config_source: {ads: {}, resource_api_version: V3}
          type_urls: [type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors]
  - applyTo: EXTENSION_CONFIG
    patch:
      operation: ADD
      value:
        name: fetched
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}
"""
"""In one random mesh of four: makes resources of ECDS, which nothing else does."""

RANDOM_PROXIES: list[dict[str, Any]] = yaml.safe_load("""
- {name: web, ip: 10.1.1.1, namespace: shop, labels: {app: web, tier: front, version: v1}}
- {name: api, ip: 10.1.2.2, namespace: other, labels: {app: api}, locality: eu/eu-1,
   metadata: {DNS_CAPTURE: "true", DNS_AUTO_ALLOCATE: "true"}}
- {name: free, ip: 10.1.3.1, namespace: shop, labels: {app: free}, metadata: {INTERCEPTION_MODE: NONE, NETWORK: near}}
- {name: root, ip: 10.1.5.1, namespace: istio-system, labels: {tier: front}}
- {name: split, ip: 10.1.1.2, namespace: shop, labels: {app: web}, metadata: {VIRTUAL_HOSTS: split}}
- {name: lazy, ip: 10.1.2.1, namespace: other, labels: {app: web}, metadata: {CLUSTERS: on-demand}}
- {name: edge, node_type: router, ip: 10.1.9.9, namespace: shop, labels: {app: edge}}
- {name: grpc, ip: 10.1.4.1, namespace: shop, labels: {app: web}, metadata: {GENERATOR: grpc},
   grpc: ["xds.istio.io/grpc/lds/inbound/10.1.4.1:80", "a.shop.svc.cluster.local:80", "a.shop.svc.cluster.local:81",
          "b.shop.svc.cluster.local:80", "b.shop.svc.cluster.local:81", "c.example.com:80", "c.example.com:81"]}
""")
"""The proxies of every random mesh, in the form of ``proxies.yaml``."""

KEYS_AT = "http://keys.test"
"""In place of the URLs for keys in the objects of the pool."""

PemFiles = tuple[bytes, bytes, bytes]
"""Certificate, private key, and the certificate of the CA."""


@attrs.frozen
class Case:
    """A mesh, and the proxies whose resources are compared."""

    name: str
    arguments: tuple[str, ...]
    """Flags of ``mesh-pilot discovery``."""
    proxies: Sequence[dict[str, Any]]
    """In the form of ``proxies.yaml``; ``grpc`` is what a proxyless client asks for."""


def golden_cases(folder: Path, names: Iterable[str], kubernetes: str) -> Iterator[Case]:
    """The golden scenarios; the one of Kubernetes objects only with a Galley that serves them, at ``kubernetes``."""
    for name in names:
        scenario = golden.ROOT / name
        mesh, networks = scenario / "mesh.yaml", scenario / "networks.yaml"
        arguments = [f"--mesh-config={mesh if mesh.exists() else golden.ROOT / 'mesh.default.yaml'}"]
        if networks.exists():
            arguments.append(f"--networks-config={networks}")
        if not (scenario / "kube").exists():
            shutil.copy(scenario / "config.yaml", _made(folder / name))
            arguments.append(f"--config-dir={folder / name}")
        elif kubernetes:
            arguments.append(f"--mcp-server={kubernetes}")
        else:
            print(f"left out: {name}, which needs the packages of the extra `proto`")
            continue
        yield Case(name, tuple(arguments), list(_with_split(golden.proxies(name))))


def _with_split(proxies: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The proxies, and each Envoy a second time as one that gets virtual hosts as resources of their own."""
    for entry in proxies:
        yield entry
        if not entry.get("grpc"):
            metadata = (entry.get("metadata") or {}) | {"VIRTUAL_HOSTS": "split"}
            name = entry["name"]
            yield {"id-name": name, **entry, "name": f"{name} (split)", "metadata": metadata}


def random_cases(folder: Path, seeds: Iterable[int]) -> Iterator[Case]:
    """A mesh for each seed."""
    files = [write_certificates(_made(folder / f"ca-{n}"), "leaf") for n in (1, 2)]
    certificates = [(f.certificate.read_bytes(), f.key.read_bytes(), f.ca.read_bytes()) for f in files]
    for seed in seeds:
        here = _made(folder / f"mesh-{seed}")
        _write_mesh(here, random.Random(seed), certificates)
        arguments = [f"--config-dir={here / 'config'}"]
        arguments += [f"--{kind}-config={here / kind}.yaml" for kind in ("mesh", "networks")]
        yield Case(f"mesh {seed}", tuple(arguments), RANDOM_PROXIES)


def _write_mesh(folder: Path, rng: random.Random, certificates: Sequence[PemFiles]) -> None:
    """Objects of the kinds of ``tests/support/pool.py``. Of several with the same name, the last one counts."""
    mesh, networks = "{}", "networks: {}"
    objects = {"extension": EXTENSION_PATCHES} if rng.random() < 0.25 else {}
    kinds = (*rng.choice(pool.THEMES), *pool.OFTEN)
    for _ in range(rng.choice(SIZES)):
        match kind := rng.choice(kinds):
            case "mesh":
                mesh = rng.choice(pool.MESHES)
            case "networks":
                networks = rng.choice(pool.NETWORKS)
            case "key set":
                pass  # see ``key_server``
            case "secret":
                name = rng.choice(("one", "two", "two-cacert"))
                objects[name] = _secret(name, rng, certificates)
            case _:
                text = pool.KINDS[kind](lambda *options: rng.choice(options))
                if not isinstance(text, str):  # what a source of ours finds out, such as a module
                    continue
                made = yaml.safe_load(text)
                key = f"{made['kind']}/{made['metadata'].get('namespace', '')}/{made['metadata']['name']}"
                objects[key] = text.replace("https://a.example.com", KEYS_AT)
    (_made(folder / "config") / "all.yaml").write_text("\n---\n".join(objects.values()), encoding="utf-8")
    (folder / "mesh.yaml").write_text(mesh, encoding="utf-8")
    (folder / "networks.yaml").write_text(networks, encoding="utf-8")


def _secret(name: str, rng: random.Random, certificates: Sequence[PemFiles]) -> str:
    chain, key, authorities = rng.choice(certificates)
    pair, roots = {"tls.crt": chain, "tls.key": key}, {"ca.crt": authorities}
    parts: dict[str, bytes] = rng.choice((pair, roots, pair | roots))
    made = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "shop"},
        "type": "Opaque",
        "data": {part: base64.b64encode(value).decode() for part, value in parts.items()},
    }
    return json.dumps(made)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


class _KeyServer(BaseHTTPRequestHandler):
    """An HTTP proxy that answers on its own: of the URLs in random meshes one has keys, and HTTPS is refused."""

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
    """The URL of an HTTP proxy through which both revisions fetch JSON Web Key Sets, so that nothing leaves the machine
    and both get the same."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _KeyServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def kubernetes(folder: Path) -> Iterator[str]:
    """The address of a Galley with the objects of ``kube-services``; empty if ``grpc_tools`` is not installed.

    ``folder`` is for compiled protos.
    """
    try:
        from tests.support.protos import compile_protos, message_classes

        galley = Galley(message_classes(compile_protos(_made(folder))))
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
        galley.put(collection, name, type_name, bytes(_body_of(document)), **texts)
    with galley.serving(0) as address:
        yield address


def _body_of(document: dict[str, Any]) -> core.ServiceSpec | core.NodeSpec | core.Pod | core.Endpoints:
    """What a Galley sends of an object: the spec of Services and Nodes, the whole of the others."""
    match document["kind"]:
        case "Service":
            return core.ServiceSpec.from_dict(_as_protobuf(document["spec"]), ignore_unknown_fields=True)
        case "Node":
            return core.NodeSpec()
        case "Pod":
            whole = {"spec": document["spec"], "status": document["status"]}
            return core.Pod.from_dict(_as_protobuf(whole), ignore_unknown_fields=True)
        case _:
            subsets = {"subsets": document["subsets"]}
            return core.Endpoints.from_dict(_as_protobuf(subsets), ignore_unknown_fields=True)


def _as_protobuf(value: Any, key: str = "") -> Any:
    """With what Kubernetes' JSON spells differently from its protobuf: IntOrString, and initialisms (``podIP``)."""
    if key == "targetPort":
        return {"type": 0, "intVal": value} if isinstance(value, int) else {"type": 1, "strVal": value}
    if isinstance(value, dict):
        return {re.sub(r"IP(s?)$", r"Ip\1", k): _as_protobuf(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_as_protobuf(v) for v in value]
    return value
