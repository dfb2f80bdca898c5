"""A Galley 1.1 in a test's hand: on another gRPC, with other protobuf, and with the habits of its source code.

What it does as the real one: a request for a collection that it lacks ends the stream; nothing is answered before its
first snapshot; then every collection is, the empty ones too; always whole collections, without a look at what the sink
says to have; a response is due once the collection's version is not that of the answered one, refused or not; answers
with another nonce are passed over. Where it dials, it begins with an empty response that has to be refused, and a
stream that it gives up stays open.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import attrs
import grpc

COLLECTIONS = (
    "istio/authentication/v1alpha1/meshpolicies",
    "istio/authentication/v1alpha1/policies",
    "istio/config/v1alpha2/adapters",
    "istio/config/v1alpha2/httpapispecbindings",
    "istio/config/v1alpha2/httpapispecs",
    "istio/config/v1alpha2/templates",
    "istio/mixer/v1/config/client/quotaspecbindings",
    "istio/mixer/v1/config/client/quotaspecs",
    "istio/networking/v1alpha3/destinationrules",
    "istio/networking/v1alpha3/envoyfilters",
    "istio/networking/v1alpha3/gateways",
    "istio/networking/v1alpha3/serviceentries",
    "istio/networking/v1alpha3/sidecars",
    "istio/networking/v1alpha3/virtualservices",
    "istio/policy/v1beta1/attributemanifests",
    "istio/policy/v1beta1/handlers",
    "istio/policy/v1beta1/instances",
    "istio/policy/v1beta1/rules",
    "istio/rbac/v1alpha1/clusterrbacconfigs",
    "istio/rbac/v1alpha1/rbacconfigs",
    "istio/rbac/v1alpha1/servicerolebindings",
    "istio/rbac/v1alpha1/serviceroles",
    "k8s/core/v1/endpoints",
    "k8s/core/v1/nodes",
    "k8s/core/v1/pods",
    "k8s/core/v1/services",
    "k8s/extensions/v1beta1/ingresses",
)
"""Those of Galley 1.1's table of types, but for adapters and templates by their own names."""

SOURCE = "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream"
SINK = "/istio.mcp.v1alpha1.ResourceSink/EstablishResourceStream"
AGGREGATED = "/istio.mcp.v1alpha1.AggregatedMeshConfigService/StreamAggregatedResources"

_UNIMPLEMENTED = 12
_FIVE_MINUTES = 300_000

Classes = dict[str, Any]
"""Google's classes of Istio's messages, by full name."""


@attrs.define
class _Watch:
    pending: Any = None
    waits_for_other_than: str | None = None
    """The version of which no more is to be sent; None: nothing was asked for."""


class GivenUp(Exception):
    """The stream ends over a request."""


def receive_into(inbox: queue.Queue[Any], requests: Iterator[Any]) -> None:
    """Have a thread put requests into a queue, and StopIteration at their end."""

    def receive() -> None:
        try:
            for request in requests:
                inbox.put(request)
        except grpc.RpcError:
            pass
        inbox.put(StopIteration)

    threading.Thread(target=receive, daemon=True).start()


@attrs.define(eq=False)
class Galley:
    """State: the snapshot with the version of each collection, and everything that sinks said."""

    classes: Classes
    collections: dict[str, dict[str, Any]] = attrs.field(factory=lambda: {name: {} for name in COLLECTIONS})
    versions: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(COLLECTIONS, 0))
    has_snapshot: bool = True
    said: list[Any] = attrs.field(factory=list)
    """Requests, in the order in which they came."""
    sent: list[Any] = attrs.field(factory=list)
    streams: int = 0
    _counter: int = 0
    _queues: list[queue.Queue[Any]] = attrs.field(factory=list)

    # -- what it holds

    def put(self, collection: str, name: str, type_name: str, body: bytes, **metadata: Any) -> None:
        """An object is there, or is changed."""
        self._counter += 1
        resource = self.classes["istio.mcp.v1alpha1.Resource"]()
        resource.metadata.name, resource.metadata.version = name, str(self._counter)
        resource.metadata.create_time.seconds = 1_500_000_000
        for key, value in metadata.items():
            getattr(resource.metadata, key).update(value)
        resource.body.type_url, resource.body.value = f"type.googleapis.com/{type_name}", body
        self.collections[collection][name] = resource
        self._changed(collection)

    def remove(self, collection: str, name: str) -> None:
        del self.collections[collection][name]
        self._counter += 1
        self._changed(collection)

    def _changed(self, collection: str) -> None:
        self.versions[collection] = self._counter
        self._wake()

    def take_snapshot(self) -> None:
        """All its own sources are in."""
        self.has_snapshot = True
        self._wake()

    def _wake(self) -> None:
        for waiting in self._queues:
            waiting.put(None)

    # -- how it speaks

    def stream(
        self,
        requests: Iterator[Any],
        send: Callable[[Any], None],
        give_up: Callable[[str], None],
        *,
        is_triggered: bool = False,
    ) -> None:
        """Process one stream until the sink leaves it, or it is given up. ``is_triggered``: it began with a trigger."""
        watches = {name: _Watch() for name in self.collections}
        inbox: queue.Queue[Any] = queue.Queue()
        self._queues.append(inbox)
        self.streams += 1
        nonce = 0

        receive_into(inbox, requests)
        while (item := inbox.get()) is not StopIteration:
            if item is not None:
                self.said.append(item)
                try:
                    if is_triggered:
                        is_triggered = False
                        if item.collection or item.error_detail.code != _UNIMPLEMENTED:
                            raise GivenUp("expected the refusal of the trigger")
                        continue
                    self._process(item, watches)
                except GivenUp as error:
                    give_up(str(error))
                    break
            for name, watch in watches.items():
                version = str(self.versions[name])
                if not self.has_snapshot or watch.waits_for_other_than in (None, version):
                    continue
                nonce += 1
                response = self.classes["istio.mcp.v1alpha1.Resources"](
                    system_version_info=version,
                    collection=name,
                    resources=list(self.collections[name].values()),
                    nonce=str(nonce),
                )
                watch.pending, watch.waits_for_other_than = response, None
                self.sent.append(response)
                send(response)
        self._queues.remove(inbox)

    def _process(self, request: Any, watches: dict[str, _Watch]) -> None:
        watch = watches.get(request.collection)
        if watch is None:
            raise GivenUp(f'unsupported collection "{request.collection}"')
        pending_nonce = watch.pending.nonce if watch.pending is not None else ""
        if request.response_nonce in ("", pending_nonce):
            watch.waits_for_other_than = watch.pending.system_version_info if watch.pending is not None else ""
            watch.pending = None

    def aggregated(self, requests: Iterator[Any], send: Callable[[Any], None], give_up: Callable[[str], None]) -> None:
        """Process a stream of the older service, as its first version did.

        Whatever version a request says, if it is not that of the collection, the collection is sent; so a refusal,
        which says the version before, has it sent again.
        """
        waiting: dict[str, str] = {}
        nonces: dict[str, str] = {}
        inbox: queue.Queue[Any] = queue.Queue()
        self._queues.append(inbox)
        self.streams += 1
        receive_into(inbox, requests)
        while (item := inbox.get()) is not StopIteration:
            if item is not None:
                self.said.append(item)
                if item.type_url not in self.collections:
                    give_up(f'unsupported type_url "{item.type_url}"')
                    break
                if nonces.get(item.type_url, item.response_nonce) == item.response_nonce:
                    waiting[item.type_url] = item.version_info
            for name, known in list(waiting.items()):
                version = str(self.versions[name])
                if self.has_snapshot and version != known:
                    del waiting[name]
                    nonces[name] = str(len(self.sent) + 1)
                    response = self.classes["istio.mcp.v1alpha1.MeshConfigResponse"](
                        version_info=version,
                        type_url=name,
                        resources=list(self.collections[name].values()),
                        nonce=nonces[name],
                    )
                    self.sent.append(response)
                    send(response)
        self._queues.remove(inbox)

    # -- where it stands

    @contextmanager
    def serving(self, port: int, *, aggregated: bool = False) -> Iterator[str]:
        """Serve gRPC, for the length of the block; gives the address. Clients that ping too often are hung up on.

        ``aggregated``: it has the older service only.
        """
        kind = "MeshConfigRequest" if aggregated else "RequestResources"
        request_class = self.classes[f"istio.mcp.v1alpha1.{kind}"]
        speak = self.aggregated if aggregated else self.stream

        def handle(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            outbox: queue.Queue[Any] = queue.Queue()

            def run() -> None:
                speak(requests, outbox.put, outbox.put)
                outbox.put(StopIteration)

            threading.Thread(target=run, daemon=True).start()
            while (item := outbox.get()) is not StopIteration:
                if isinstance(item, str):
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, item)
                yield item

        _, service, method = (AGGREGATED if aggregated else SOURCE).split("/")
        handlers = {
            method: grpc.stream_stream_rpc_method_handler(
                handle, request_class.FromString, lambda message: message.SerializeToString()
            )
        }
        server = grpc.server(
            ThreadPoolExecutor(40),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", _FIVE_MINUTES),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _FIVE_MINUTES),
                ("grpc.http2.max_ping_strikes", 2),
            ],
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        server.start()
        try:
            yield address
        finally:
            server.stop(0).wait()

    @contextmanager
    def dialling(self, address: str, *, again_seconds: float = 1.0, trigger_seconds: float = 0.0) -> Iterator[None]:
        """Dial a sink, as with ``--sinkAddress``, for the length of the block. The trigger takes its time to arrive."""
        stopped = threading.Event()
        responses = self.classes["istio.mcp.v1alpha1.Resources"]
        requests = self.classes["istio.mcp.v1alpha1.RequestResources"]

        def run() -> None:
            with grpc.insecure_channel(address) as channel:
                method = channel.stream_stream(SINK, lambda m: m.SerializeToString(), requests.FromString)
                while not stopped.is_set():
                    outbox: queue.Queue[Any] = queue.Queue()
                    call = method(iter(outbox.get, StopIteration), wait_for_ready=True)
                    stopped.wait(trigger_seconds)
                    outbox.put(responses())
                    self.stream(call, outbox.put, lambda reason: None, is_triggered=True)
                    stopped.wait(again_seconds)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            for waiting in list(self._queues):
                waiting.put(StopIteration)
            thread.join(10)
