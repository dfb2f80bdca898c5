"""Warnings for routes that no request can reach, because earlier ones take everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import betterproto2

from mesh_pilot.api.istio.networking.v1alpha3 import HttpRoute, TcpRoute, TlsRoute, VirtualService
from mesh_pilot.config.validation.context import warning
from mesh_pilot.model.config import Problem


def check_unreachable(spec: VirtualService) -> Iterator[Problem]:
    """Routes after a catch-all, and matches that an earlier route has already."""
    yield from _check_routes("spec.http", spec.http)
    yield from _check_routes("spec.tls", spec.tls)
    yield from _check_routes("spec.tcp", spec.tcp)


def _check_routes(path: str, routes: Sequence[HttpRoute | TlsRoute | TcpRoute]) -> Iterator[Problem]:
    catch_all: int | None = None
    seen: dict[object, int] = {}
    for index, route in enumerate(routes):
        here = f"{path}[{index}]"
        if catch_all is not None:
            yield warning(here, f"is never used: {path.removeprefix('spec.')}[{catch_all}] matches everything")
            continue
        if not route.match:
            catch_all = index
            continue
        for number, match in enumerate(route.match):
            key = _key(match)
            if seen.setdefault(key, index) != index:
                where = f"{path.removeprefix('spec.')}[{seen[key]}]"
                yield warning(f"{here}.match[{number}]", f"is never used: {where} has the same match")


def _key(match: betterproto2.Message) -> object:
    """What a match matches, without its name, as something to compare and hash."""
    names = ("name", "stat_prefix", "_unknown_fields")
    return tuple(_frozen(value) for name, value in vars(match).items() if name not in names)


def _frozen(value: object) -> object:
    if isinstance(value, betterproto2.Message):
        return _key(value)
    if isinstance(value, dict):
        return frozenset((name, _frozen(item)) for name, item in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
