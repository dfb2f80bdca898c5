"""The patches of EnvoyFilters that the control plane has for the bootstrap, and which of them Envoy takes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import structlog

from mesh_pilot.agent.base.wire import Parts
from mesh_pilot.agent.bootstrap.custom import laid_over, merged
from mesh_pilot.base.protowire import WireError
from mesh_pilot.model.proxy import BOOTSTRAP_PATCH, BOOTSTRAP_PATCHES

log = structlog.get_logger(scope="agent.bootstrap")


@attrs.frozen
class BootstrapPatch:
    place: str
    """``EnvoyFilter/shop/limits: spec.configPatches[0]``."""
    mark: str
    """A different one for every place and value; the node tells the control plane those that are merged."""
    value: Mapping[str, Any]
    """A Bootstrap as JSON."""


@attrs.frozen
class ChosenPatches:
    """The patches that are merged, and for each other one why Envoy refuses it."""

    merged: tuple[BootstrapPatch, ...] = ()
    left_out: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class BootstrapStatistics:
    """The patches, for debug pages."""

    patches: tuple[str, ...]
    """The places of those that are merged into the bootstrap."""
    patches_left_out: Mapping[str, str]
    """The places of the others, and why."""


def read_patches(proxy_config: bytes | None) -> tuple[BootstrapPatch, ...]:
    """The patches in the control plane's ProxyConfig. One that cannot be read costs only itself."""
    try:
        bodies = Parts(proxy_config or b"").all(BOOTSTRAP_PATCH)
    except WireError:
        return ()  # these bytes are not a ProxyConfig, which ``effective`` reports
    found: list[BootstrapPatch] = []
    for body in bodies:
        try:
            found.append(_read(Parts(body)))
        except (WireError, ValueError) as error:
            log.warning("a patch of the bootstrap cannot be read", reason=str(error), effect="it is left out")
    return tuple(found)


def with_patches(bootstrap: Mapping[str, Any], patches: Sequence[BootstrapPatch]) -> dict[str, Any]:
    """The bootstrap with the patches merged into it, whose node says which they are."""
    result = dict(bootstrap)
    for patch in patches:
        result = laid_over(result, patch.value)
    marks = ",".join(patch.mark for patch in patches)
    return merged(result, {"node": {"metadata": {BOOTSTRAP_PATCHES: marks}}}) if patches else result


async def choose(
    patches: Sequence[BootstrapPatch], why_refused: Callable[[Sequence[BootstrapPatch]], Awaitable[str]]
) -> ChosenPatches:
    """The patches with which Envoy takes the bootstrap. Of several that contradict each other, the first stays.

    ``why_refused`` tries the bootstrap with some; empty if Envoy takes it. Where that refuses it without any, too, the
    fault is not the patches'.
    """
    if not patches or not await why_refused(patches) or await why_refused(()):
        return ChosenPatches(tuple(patches))
    chosen: list[BootstrapPatch] = []
    left_out: dict[str, str] = {}
    for patch in patches:
        reason = await why_refused([*chosen, patch])
        if reason:
            left_out[patch.place] = reason
            log.error("envoy refuses a patch of its bootstrap; it is left out", patch=patch.place, reason=reason)
        else:
            chosen.append(patch)
    return ChosenPatches(tuple(chosen), left_out)


def _read(body: Parts) -> BootstrapPatch:
    """Raises ValueError."""
    place, mark, value = body.text(1), body.text(2), json.loads(body.text(3))
    if not isinstance(value, Mapping):
        raise ValueError(f"{place} is not an object")
    return BootstrapPatch(place, mark, value)
