"""A client that refuses an incremental response is sent all of it again with the next change, not the change alone."""

from __future__ import annotations

from mesh_pilot.xds.config_api.stream import CollectionStream
from mesh_pilot.xds.mcp.messages import ErrorCode, ErrorDetail, McpRequest, McpResponse
from tests.sources.mcp_link import FakeCollections

ONE = "istio/one"


def test_what_was_refused_beside_a_bad_object_comes_with_its_correction() -> None:
    served = FakeCollections()
    stream = CollectionStream(served)

    def answered(nonce: str, error: ErrorDetail | None = None) -> None:
        stream.on_request(McpRequest(ONE, nonce, error=error, incremental=True))

    def sent() -> McpResponse:
        response = stream.next_response()
        assert response is not None
        return response

    for name in ("good", "bad", "gone"):
        served.put(ONE, name, "1")
    answered("")
    answered(sent().nonce)
    served.put(ONE, "good", "2")
    served.put(ONE, "bad", "bad-2")
    served.remove(ONE, "gone")
    answered(sent().nonce, ErrorDetail(ErrorCode.INVALID_ARGUMENT, "bad is bad"))
    assert stream.next_response() is None
    served.put(ONE, "bad", "3")
    corrected = sent()
    assert {resource.name: resource.body for resource in corrected.resources} == {"good": b"2", "bad": b"3"}
    assert corrected.removed == ("gone",)
