"""CPU of a reflector alone, for each object of a list and for each event: ``python -m bench.api_reflector [PODS]``.

The text of an API server's answers comes from memory: no network, no server. Next to it stands ``json.loads`` of the
same objects, which is the least that a client in Python had to do before it read them with msgspec.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver import Access, ApiClient, ApiResource, reflect

PODS = ApiResource("", ("v1",), "pods", "Pod")
TIME = "2026-11-24T00:00:00Z"
PART_BYTES = 16 * 1024
"""The size of the parts in which text arrives from a socket."""


def pod(number: int, version: int) -> dict[str, Any]:
    """A Pod as large as they are, with its managedFields."""
    name = f"reviews-{number // 10}-{number:05d}"
    environment = [{"name": f"SETTING_{i}", "value": f"value of {i} in {name}"} for i in range(12)]
    ports = [{"name": f"port-{i}", "containerPort": 8080 + i, "protocol": "TCP"} for i in range(4)]
    mounts = [{"name": f"volume-{i}", "mountPath": f"/var/data/{i}", "readOnly": True} for i in range(4)]
    container = {"name": "app", "image": f"registry.example/app:{version}", "env": environment, "ports": ports}
    container |= {"volumeMounts": mounts, "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    fields = {f"f:{name}": {"f:value": {}, "f:other": {}} for name in ("a", "b", "c", *(f"x{i}" for i in range(60)))}
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": f"team-{number % 50}",
            "uid": f"5b0a3c9e-0000-0000-0000-{number:012d}",
            "resourceVersion": str(version),
            "labels": {"app": "reviews", "version": "v1", "pod-template-hash": "5bf4b6d7f"},
            "annotations": {"prometheus.io/scrape": "true", "sidecar.istio.io/status": "x" * 300},
            "managedFields": [{"manager": m, "operation": "Update", "fieldsV1": fields} for m in ("a", "b")],
        },
        "spec": {"containers": [container], "nodeName": f"node-{number % 100}", "serviceAccountName": "reviews"},
        "status": {
            "phase": "Running",
            "podIP": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            "conditions": [{"type": c, "status": "True", "lastTransitionTime": TIME} for c in conditions],
        },
    }


class _Answers(httpx.AsyncBaseTransport):
    """An API server's answers, made before. State: what watches are still to be sent."""

    def __init__(self, pages: list[bytes], initial: list[bytes], events: list[bytes]) -> None:
        self._pages, self._initial, self._events = pages, initial, events
        self.streams = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        params = request.url.params
        if "watch" not in params:
            if request.url.path.endswith("/v1"):
                return httpx.Response(200, json={"resources": [{"name": "pods"}]})
            return httpx.Response(200, content=self._pages[int(params.get("continue", 0))])
        if "sendInitialEvents" not in params:
            return httpx.Response(200, stream=_Parts(self._events))
        if not self.streams:
            return httpx.Response(422, json={"kind": "Status", "code": 422})
        return httpx.Response(200, stream=_Parts([*self._initial, *self._events]))


class _Parts(httpx.AsyncByteStream):
    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            await trio.lowlevel.checkpoint()
            yield part
        await trio.sleep_forever()


class _Counter:
    """State: what was told, and when the list was complete."""

    def __init__(self, events: int) -> None:
        self.listed_at = self.begun_at = 0.0
        self.left = events
        self.done = trio.Event()

    async def listed(self, resource: ApiResource, version: str, objects: list[Any]) -> None:
        self.listed_at = time.process_time()
        self.count = len(objects)

    async def changed(self, resource: ApiResource, version: str, found: Any, *, there: bool) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()

    def lost(self, resource: ApiResource, reason: str) -> None:
        if "422" not in reason:
            raise AssertionError(reason)

    def found(self, resource: ApiResource) -> None:
        pass


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    pods = [pod(each, 1) for each in range(number)]
    texts = [json.dumps(each, separators=(",", ":")).encode() for each in pods]
    changed = [json.dumps(pod(each, each + 2), separators=(",", ":")).encode() for each in range(number)]
    print(f"{number} Pods of {sum(map(len, texts)) // number} bytes; microseconds of CPU each:")
    begin = time.process_time()
    for text in texts:
        json.loads(text)
    plain = _each(begin, time.process_time(), number)
    print(f"  {'json.loads alone':<28} {plain:7.1f}")
    pages = []
    for start in range(0, number, 500):
        token = f',"continue":"{start // 500 + 1}"' if start + 500 < number else ""
        items = b",".join(texts[start : start + 500])
        pages.append(b'{"metadata":{"resourceVersion":"1"%s},"items":[%s]}' % (token.encode(), items))
    initial = [b'{"type":"ADDED","object":%s}\n' % text for text in texts]
    end = {"metadata": {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}}
    initial.append(json.dumps({"type": "BOOKMARK", "object": end}).encode() + b"\n")
    events = [b'{"type":"MODIFIED","object":%s}\n' % text for text in changed]
    for streams in (False, True):
        answers = _Answers(pages, _parts(initial), _parts(events))
        answers.streams = streams
        listed, event = trio.run(_measure, answers, number)
        name = "streaming list" if streams else "list in pages"
        print(f"  {name:<28} {listed:7.1f}   {listed / plain:.2f} x json.loads")
        print(f"  {'an event of a watch':<28} {event:7.1f}   {event / plain:.2f} x json.loads")


def _parts(lines: list[bytes]) -> list[bytes]:
    text = b"".join(lines)
    return [text[start : start + PART_BYTES] for start in range(0, len(text), PART_BYTES)]


async def _measure(answers: _Answers, number: int) -> tuple[float, float]:
    """CPU for an object of the list, and for an event, in microseconds."""
    counter = _Counter(number)
    gc.collect()
    begin = time.process_time()
    async with ApiClient(Access(server="http://memory"), transport=answers) as client, trio.open_nursery() as nursery:
        nursery.start_soon(reflect, client, PODS, counter, Backoff())
        await counter.done.wait()
        end = time.process_time()
        nursery.cancel_scope.cancel()
    return _each(begin, counter.listed_at, number), _each(counter.listed_at, end, number)


def _each(begin: float, end: float, number: int) -> float:
    return (end - begin) / number * 1e6


if __name__ == "__main__":
    main()
