"""Negotiation with an MCP server: a collection that it lacks costs no other one, however alike their names are."""

from __future__ import annotations

from types import TracebackType
from typing import Any, cast

import pytest

from mesh_pilot.net.rpc import Channel, GRPCError, Status
from mesh_pilot.sources.mcp.negotiation import Negotiation
from mesh_pilot.xds.mcp.messages import MessageStream
from mesh_pilot.xds.mcp.wire import Dialect

COLLECTIONS = ("api/v1/Gateway", "api/v1/GatewayClass", "api/v1/Route")


class Spoken:
    """A dialect in which collections have the names that they have here."""

    path = "/mcp"

    def name_of(self, collection: str) -> str | None:
        return collection


class Calls:
    """A channel whose calls do nothing."""

    def request(self, *_: object) -> Calls:
        return self

    async def __aenter__(self) -> Calls:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass


@pytest.mark.parametrize("lacking", COLLECTIONS)
async def test_the_collection_that_an_error_names_is_left_out_alone(lacking: str) -> None:
    negotiation = Negotiation("test", COLLECTIONS, (cast(Dialect, Spoken()),))
    without: list[frozenset[str]] = []

    async def run(stream: MessageStream, dialect: Dialect, missing: frozenset[str]) -> None:
        without.append(missing)
        if lacking not in missing:
            raise GRPCError(Status.INVALID_ARGUMENT, f"unsupported collection: {lacking}")

    await negotiation.run(cast(Channel, cast(Any, Calls())), run)
    assert without == [frozenset(), {lacking}]
    assert negotiation.not_offered == (lacking,)
