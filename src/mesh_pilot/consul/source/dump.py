"""The content of a Consul, read once for ``mesh-pilot migrate``: config entries, intentions, instances of services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import trio

from mesh_pilot.base.reading import as_object, as_objects, as_string
from mesh_pilot.consul.client.api import ConsulApi, open_api
from mesh_pilot.consul.client.client import ConsulDeniedError, ConsulError
from mesh_pilot.consul.client.settings import ConsulSettings
from mesh_pilot.consul.source.mesh_data import default_of_agent

_AT_ONCE = 8
"""Queries at a time."""


@attrs.frozen
class ConsulDump:
    """The objects of a Consul, as its API answers them."""

    objects: tuple[tuple[str, Mapping[str, object]], ...]
    """Each with its place for people."""
    unread: tuple[tuple[str, str], ...]
    """The names of queries that Consul denied, with the reasons."""
    default_allow: bool | None
    """The policy for connections that no intention is about; None: Consul does not say."""
    datacenter: str = ""


async def read_consul(settings: ConsulSettings, kinds: Iterable[str]) -> ConsulDump:
    """Everything that the token may read; ``kinds``: those of config entries.

    Raises ConsulError if Consul does not answer. What is denied is told; anything else that fails is raised.
    """
    objects: list[tuple[str, Mapping[str, object]]] = []
    unread: list[tuple[str, str]] = []
    async with open_api(settings) as api:
        for kind in kinds:
            try:
                answer = await api.entries(kind, 0, 0.0)
            except ConsulDeniedError as error:
                unread.append((f"the {kind} entries", str(error)))
            else:
                objects += ((f"consul {kind}/{each.get('Name', '')}", each) for each in as_objects(answer.data))
        try:
            answer = await api.intentions(0, 0.0)
            objects += (("consul intentions", each) for each in as_objects(answer.data))
        except ConsulDeniedError as error:
            unread.append(("the intentions", str(error)))
        objects += await _instances(api, unread)
        return ConsulDump(tuple(objects), tuple(unread), await _default_allow(api), await _datacenter(api))


async def _instances(api: ConsulApi, unread: list[tuple[str, str]]) -> Sequence[tuple[str, Mapping[str, object]]]:
    try:
        answer = await api.services(0, 0.0)
    except ConsulDeniedError as error:
        unread.append(("the services", str(error)))
        return ()
    names = sorted(as_object(answer.data))
    found: dict[str, Sequence[Mapping[str, object]]] = {}
    failed: list[ConsulError] = []
    limiter = trio.CapacityLimiter(_AT_ONCE)

    async def read(name: str) -> None:
        async with limiter:
            try:
                found[name] = as_objects((await api.instances(name, 0, 0.0)).data)
            except ConsulDeniedError as error:
                unread.append((f"the service {name}", str(error)))
                found[name] = ()
            except ConsulError as error:
                failed.append(error)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(read, name)
    if failed:
        raise failed[0]
    return [(f"consul service/{name}", each) for name in names for each in found[name]]


async def _default_allow(api: ConsulApi) -> bool | None:
    try:
        return default_of_agent(await api.agent.self())
    except ConsulError:
        return None


async def _datacenter(api: ConsulApi) -> str:
    try:
        answer = await api.agent.self()
    except ConsulError:
        return ""
    return as_string(answer, "Config", "Datacenter")
