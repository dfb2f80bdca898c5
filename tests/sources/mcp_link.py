"""A sink and a source of MCP with nothing between them: messages wait in lists until a test hands them on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import attrs

from mesh_pilot.sources.mcp.sink import AppliedResponse, RejectedResource, Sink
from mesh_pilot.xds.config_api.stream import CollectionStream
from mesh_pilot.xds.mcp.messages import McpRequest, McpResource, McpResponse

BAD = b"bad"


def resource(name: str, content: str, version: str = "") -> McpResource:
    """A resource with a version that follows from its content, unless another is given."""
    return McpResource(name, version or f"v-{content}", "type", content.encode())


@attrs.define
class FakeCollections:
    """Collections in a test's hand."""

    collections: dict[str, dict[str, McpResource]] = attrs.field(factory=dict)
    log: dict[str, list[str]] = attrs.field(factory=dict)

    def put(self, collection: str, name: str, content: str) -> None:
        self.collections.setdefault(collection, {})[name] = resource(name, content)
        self.log.setdefault(collection, []).append(name)

    def remove(self, collection: str, name: str) -> None:
        if self.collections.setdefault(collection, {}).pop(name, None):
            self.log.setdefault(collection, []).append(name)

    def revision(self, collection: str) -> int:
        return len(self.log.get(collection, ()))

    def resources(self, collection: str) -> Mapping[str, McpResource]:
        return dict(self.collections.get(collection, {}))

    def changed_since(self, collection: str, revision: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.log.get(collection, [])[revision:]))


@attrs.define
class Link:
    """One sink, and the streams of a source to it, one after the other."""

    served: FakeCollections
    sink: Sink[bytes]
    ignores_versions: bool = False
    only_whole: bool = False
    stream: CollectionStream = attrs.field(init=False)
    to_source: deque[McpRequest] = attrs.field(factory=deque)
    to_sink: deque[McpResponse] = attrs.field(factory=deque)
    responses: list[AppliedResponse[bytes]] = attrs.field(factory=list)
    values: dict[str, dict[str, bytes]] = attrs.field(factory=dict)
    """The values that the changes lead to."""
    judged: int = 0

    def __attrs_post_init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        """A new stream; what was under way on the one before is lost."""
        self.stream = CollectionStream(self.served)
        self.to_source = deque(self.sink.open())
        self.to_sink.clear()

    def source_reads(self) -> bool:
        if not self.to_source:
            return False
        request = self.to_source.popleft()
        if self.ignores_versions:
            request = attrs.evolve(request, versions={})
        if self.only_whole:
            request = attrs.evolve(request, incremental=False)
        self.stream.on_request(request)
        return True

    def overtake(self) -> None:
        """The last message to either side overtakes those of other collections."""
        for line in (self.to_source, self.to_sink):
            if line:
                last = line.pop()
                place = max(
                    (i + 1 for i, message in enumerate(line) if message.collection == last.collection), default=0
                )
                line.insert(place, last)  # type: ignore[arg-type]

    def source_sends(self) -> bool:
        response = self.stream.next_response()
        if response is not None:
            self.to_sink.append(response)
        return response is not None

    def sink_reads(self) -> bool:
        if not self.to_sink:
            return False
        review = self.sink.receive(self.to_sink.popleft())
        self.judged += len(review.changed)
        applied = self.sink.apply(review, {r.name: judge(r) for r in review.changed})
        for resource in review.response.resources:
            held = self.sink.accepted(applied.collection).get(resource.name)
            assert isinstance(judge(resource), RejectedResource) or (held and held.value == resource.body), (
                "a good one was lost"
            )
        self.follow(applied)
        self.to_source.append(applied.answer)
        return True

    def follow(self, applied: AppliedResponse[bytes]) -> None:
        self.responses.append(applied)
        values = self.values.setdefault(applied.collection, {})
        for name, value in applied.removed:
            assert values.pop(name) == value
        values.update(applied.upserted)

    def settle(self) -> None:
        """Until nobody has anything to say."""
        while self.source_reads() or self.source_sends() or self.sink_reads():
            pass


def judge(resource: McpResource) -> bytes | RejectedResource:
    return RejectedResource(resource, "is bad") if resource.body.startswith(BAD) else resource.body
