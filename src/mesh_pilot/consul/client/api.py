"""The questions of a source to Consul, each as a query that can wait for a change.

    async with open_api(settings) as api:
        answer = await api.services(index=0, wait_seconds=0)

Services, instances, checks and nodes are asked for by the methods of python-consul2. What `_asked` asks for, these
cannot: they know no filters, do not wait for changes of config entries and intentions, ask for intentions in the
agent's own datacenter only, decode all keys of a tree or none, and know nothing of the summaries of Consul's web page.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import attrs
import structlog
import trio
from consul import base

from mesh_pilot.base.reading import as_integer, as_objects
from mesh_pilot.consul.client.client import (
    ConsulClient,
    ConsulError,
    HttpTransport,
    Parameter,
    index_of,
    open_http,
    wait_text,
)
from mesh_pilot.consul.client.service_filter import catalog_filter
from mesh_pilot.consul.client.settings import Consistency, ConsulSettings

log = structlog.get_logger(scope="sources")

_OBJECT_OR_NULL = (dict, type(None))
_LIST_OR_NULL = (list, type(None))
"""Consul answers null for an absent key, and for a kind without entries."""


@attrs.frozen
class Answer:
    """The answer to a query."""

    index: int
    """The index for the next query; 0 if Consul gave none that is usable."""
    data: object


class ConsulApi(ConsulClient):
    """The queries of a source. The type of an answer is checked; in it may be any JSON. Each raises ConsulError.

    State: the filter of the catalog, until Consul rejects it.
    """

    def __init__(self, http: HttpTransport, settings: ConsulSettings) -> None:
        super().__init__(http, settings.datacenter)
        self._settings = settings
        self._catalog_filter = catalog_filter(settings.service_filter)

    @property
    def filters_catalog(self) -> bool:
        """True if Consul is asked to leave services out of its catalog."""
        return bool(self._catalog_filter)

    async def peering(self) -> Answer:
        """The peering of the settings: ``{State, StreamStatus: {ImportedServices}}``; None if it does not exist.

        It is answered at once: its state and imports move no index that a query could wait for.
        """
        return await self._asked(_OBJECT_OR_NULL, f"/v1/peering/{self._settings.peer}", 0, 0.0)

    async def services(self, index: int, wait_seconds: float) -> Answer:
        """All services, each with all its tags: an object; newer versions of Consul leave out what is filtered."""
        path = "/v1/catalog/services"
        if self._catalog_filter:
            try:
                return await self._asked(dict, path, index, wait_seconds, ("filter", self._catalog_filter))
            except ConsulError as error:
                if "boolean expression" not in str(error):
                    raise
                log.info("Consul rejected the catalog filter; querying services one by one", error=str(error))
                self._catalog_filter = ""
        return _answer(dict, path, await self.catalog.services(**_blocking(index, wait_seconds)))

    async def instances(self, name: str, index: int, wait_seconds: float) -> Answer:
        """The health entries of a service's instances: a list of ``{Node, Service, Checks}``."""
        path, tag = f"/v1/health/service/{name}", self._settings.service_tag or None
        said = {"peer": self._settings.peer, "filter": self._settings.service_filter, "tag": tag}
        if self._settings.peer or self._settings.service_filter:
            narrowing: list[Parameter] = [(key, value) for key, value in said.items() if value]
            return await self._asked(list, path, index, wait_seconds, *narrowing)
        return _answer(list, path, await self.health.service(name, tag=tag, **_blocking(index, wait_seconds)))

    async def checks(self, state: str, index: int, wait_seconds: float) -> Answer:
        """All checks in a state, such as ``critical``: a list of ``{Node, CheckID, ServiceName, ...}``."""
        path = f"/v1/health/state/{state}"
        return _answer(list, path, await self.health.state(state, **_blocking(index, wait_seconds)))

    async def nodes(self, index: int, wait_seconds: float) -> Answer:
        """The index of the nodes; none of them is listed."""
        return await self._asked(list, "/v1/catalog/nodes", index, wait_seconds, ("filter", 'Node == ""'))

    async def summary(self) -> Answer:
        """The outlines of all services: a list of ``{Name, Tags, Nodes, InstanceCount, Checks..., ...}``.

        This is what Consul's own web page asks for. It is not documented, and nothing depends on it: without it,
        finding out which service changed takes longer.
        """
        return await self._asked(list, "/v1/internal/ui/services", 0, 0.0)

    async def node_indexes(self) -> Mapping[str, int]:
        """The index at which each node was last modified, by its name."""
        answer = _answer(list, "/v1/catalog/nodes", await self.catalog.nodes())
        return {str(node.get("Node")): as_integer(node, "ModifyIndex") for node in as_objects(answer.data)}

    async def modified_at(self, instances: Sequence[tuple[str, str]]) -> Sequence[int] | None:
        """The index at which each instance, given by node and id, was last modified; 0 for one that is gone.

        At most 64 at once. None if the token may not read all of them, or where a namespace or partition is set.
        """
        if self._settings.consul_namespace or self._settings.partition:
            return None
        found = [0] * len(instances)
        left = list(range(len(instances)))
        while left:
            gets = [
                {"Service": {"Verb": "get", "Node": instances[i][0], "Service": {"ID": instances[i][1]}}} for i in left
            ]
            params: list[Parameter] = [("dc", self.dc)] if self.dc else []
            if self._settings.consistency is not Consistency.DEFAULT:
                params.append((self._settings.consistency.value, "1"))
            is_whole, answers = await self.http.put(transaction, path="/v1/txn", params=params, data=json.dumps(gets))
            if is_whole:
                if len(answers) != len(left):
                    return None
                for i, answer in zip(left, answers, strict=True):
                    found[i] = as_integer(answer, "Service", "ModifyIndex")
                break
            # A transaction with an instance that is gone tells nothing of the others.
            gone = {answer.get("OpIndex") for answer in as_objects(answers)}
            still = [i for at, i in enumerate(left) if at not in gone]
            if len(still) == len(left):
                return None
            left = still
        return found

    async def tree(self, prefix: str, index: int, wait_seconds: float) -> Answer:
        """All keys below a prefix: a list of ``{Key, Value, ...}``, values in base64; None where there are none."""
        return await self._asked(_LIST_OR_NULL, f"/v1/kv/{prefix}", index, wait_seconds, ("recurse", "1"))

    async def entries(self, kind: str, index: int, wait_seconds: float) -> Answer:
        """All config entries of a kind: a list of ``{Kind, Name, ...}``; none of one that an older Consul lacks."""
        try:
            return await self._asked(_LIST_OR_NULL, f"/v1/config/{kind}", index, wait_seconds)
        except ConsulError as error:
            if "invalid config entry kind" not in str(error):
                raise
        if index:
            await trio.sleep(wait_seconds)
        return Answer(1, None)

    async def intentions(self, index: int, wait_seconds: float) -> Answer:
        """All intentions: a list of ``{SourceName, DestinationName, Action, ...}``."""
        return await self._asked(_LIST_OR_NULL, "/v1/connect/intentions", index, wait_seconds)

    async def connect_roots(self, index: int, wait_seconds: float) -> Answer:
        """The roots of Consul's own mesh: ``{TrustDomain, ActiveRootID, Roots: [{RootCert, ...}]}``."""
        return await self._asked(dict, "/v1/agent/connect/ca/roots", index, wait_seconds)

    async def connect_leaf(self, service: str, index: int, wait_seconds: float) -> Answer:
        """A service's certificate in Consul's own mesh, with its key: ``{CertPEM, PrivateKeyPEM, ServiceURI, ...}``.

        The agent keeps it, and renews it in time.
        """
        return await self._asked(dict, f"/v1/agent/connect/ca/leaf/{service}", index, wait_seconds)

    async def is_allowed(self, source: str, destination: str) -> object:
        """True if intentions, or else the default policy, let a service call another: ``{Allowed}``."""
        names: list[Parameter] = [("source", source), ("destination", destination)]
        if self.dc:
            names.append(("dc", self.dc))
        found: object = await self.http.get(base.CB.json(), path="/v1/connect/intentions/check", params=names)
        return found

    async def check_key(self, key: str) -> None:
        """Ask for one key, there or not. Raises ConsulDeniedError if the token may not read it."""
        await self.kv.get(key)

    async def check_intentions(self, service: str) -> None:
        """Ask for the intentions about a service. Raises ConsulDeniedError if the token may not read them."""
        await self._asked(dict, "/v1/connect/intentions/match", 0, 0.0, ("by", "destination"), ("name", service))

    async def _asked(
        self, expected: type | tuple[type, ...], path: str, index: int, wait_seconds: float, *more: Parameter
    ) -> Answer:
        """The answer of a path, of the expected type. Raises ConsulError."""
        params: list[Parameter] = [*_blocking(index, wait_seconds).items(), *more]
        if self.dc:
            params.append(("dc", self.dc))
        return _answer(expected, path, await self.http.get(base.CB.json(index=True), path=path, params=params))


@asynccontextmanager
async def open_api(settings: ConsulSettings) -> AsyncIterator[ConsulApi]:
    """A client with its own connections, for the length of the block. Raises ConsulError for bad TLS files."""
    always = {"partition": settings.partition, "ns": settings.consul_namespace}
    async with open_http(settings.agent) as http:
        transport = HttpTransport(
            lambda: nullcontext(http), settings.agent, always, settings.consistency, settings.timing
        )
        yield ConsulApi(transport, settings)


def _blocking(index: int, wait_seconds: float) -> dict[str, Any]:
    """The parameters of a query that waits for another index; none for one that is answered at once."""
    return {"index": index, "wait": wait_text(wait_seconds)} if index else {}


def _answer(expected: type | tuple[type, ...], path: str, found: tuple[object, object]) -> Answer:
    index, data = found
    if not isinstance(data, expected):
        raise ConsulError(f"what answers {path} is not Consul: it answers with {type(data).__name__}")
    return Answer(index_of(index), data)


def transaction(response: base.Response) -> tuple[bool, list[object]]:
    """The results of a transaction, or (False) its errors, which python-consul2 gives as one text."""
    if response.code not in (200, 409):
        base.CB.json()(response)  # raises what python-consul2 has for the status
    data = json.loads(response.body)
    return response.code == 200, list(data["Results" if response.code == 200 else "Errors"] or ())
