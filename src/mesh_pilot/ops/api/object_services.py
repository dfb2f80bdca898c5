"""The services that an object is about: those of its hosts, and those that its routes lead to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs
from starlette.requests import Request

from mesh_pilot.mesh.virtual_services.rules import destinations_of, http_rules
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.ops.api.objects import IN_PATH
from mesh_pilot.ops.api.route import ApiError, ApiTopic, Found
from mesh_pilot.ops.api.visitors import Scope
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.world import World

MOST = 50
"""Services of an answer."""


@attrs.frozen
class NamedService:
    """A service by name."""

    namespace: str
    host: str


routes = ApiTopic()


@routes.declare(
    "/objects/{kind}/{namespace}/{name}/services",
    "The services that an object is about: those of its hosts, and those that its routes lead to.",
    parameters=IN_PATH,
    answers=list[NamedService],
    scope=Scope.NAMESPACE,
)
async def about(state: PlaneState, request: Request) -> Found:
    path = request.path_params
    key = ConfigKey(path["kind"], path["namespace"], path["name"])
    config = state.world.config.peek(key)
    if config is None:
        raise ApiError(404, f"no object {key} in force")
    return _services(state.world, config)


def _services(world: World, config: Config) -> Sequence[NamedService]:
    hosts = [*_hosts(config), *_destinations(world, config)]
    return [*dict.fromkeys(_named(world, config, hosts))][:MOST]


def destinations_named(world: World, config: Config) -> Iterator[NamedService]:
    """The services that the rules of a VirtualService lead to."""
    return _named(world, config, _destinations(world, config))


def _named(world: World, config: Config, hosts: Iterable[str]) -> Iterator[NamedService]:
    for host in hosts:
        named = world.services_named.peek(world.full_host(host, config.namespace))
        for service in [each for each in named if each.namespace == config.namespace] or named[:1]:
            yield NamedService(service.namespace, service.host)


def _hosts(config: Config) -> Iterator[str]:
    if config.key.kind == "DestinationRule":
        yield config.spec.host
    elif config.key.kind in ("ServiceEntry", "VirtualService"):
        yield from config.spec.hosts


def _destinations(world: World, config: Config) -> Iterator[str]:
    if config.key.kind == "VirtualService":
        for rule in http_rules(world.view, config.key):
            yield from (destination.host for destination in destinations_of(rule.spec))
        for rule in (*config.spec.tls, *config.spec.tcp):
            yield from (each.destination.host for each in rule.route if each.destination is not None)
