"""The next response of a subscription, and the digests that identify it. Pure functions of immutable values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from mesh_pilot.engine.snapshots import Snapshot, SnapshotStore
from mesh_pilot.model.resource import Resource
from mesh_pilot.xds.ads.messages import Response, Variant

_DIGEST_MASK = (1 << 128) - 1


@attrs.frozen(eq=False)
class PendingResponse:
    """The next response of a subscription. Streams that are about to send the same mostly share one."""

    puts: tuple[Resource, ...] = ()
    """New, changed or requested again; by name."""
    drops: tuple[str, ...] = ()
    """Names that the client holds or requests, and that do not exist."""
    stand_ins: tuple[Resource, ...] = ()
    """The ``puts`` that stand in for resources that do not exist."""
    completes: Snapshot | None = None
    """The snapshot that a client has with it, if it is all that the client lacks of that."""

    def __len__(self) -> int:
        return len(self.touched)

    def __bool__(self) -> bool:
        return True

    @cached_property
    def touched(self) -> tuple[str, ...]:
        """All names in it."""
        return (*[resource.name for resource in self.puts], *self.drops)

    @cached_property
    def names(self) -> frozenset[str]:
        """All names in it."""
        return frozenset(self.touched)

    @cached_property
    def put_names(self) -> frozenset[str]:
        return self.names.difference(self.drops)


@attrs.define
class ResponseBuilder:
    """A response being put together."""

    puts: list[Resource] = attrs.field(factory=list)
    drops: list[str] = attrs.field(factory=list)
    stand_ins: list[Resource] = attrs.field(factory=list)

    def add(self, name: str, resource: Resource | None, *, is_stand_in: bool = False) -> None:
        if resource is None:
            self.drops.append(name)
            return
        self.puts.append(resource)
        if is_stand_in:
            self.stand_ins.append(resource)

    def build(self) -> PendingResponse:
        return PendingResponse(tuple(self.puts), tuple(self.drops), tuple(self.stand_ins))


def step(store: SnapshotStore, held: Snapshot, desired: Snapshot) -> tuple[PendingResponse | None, tuple[str, ...]]:
    """The response that takes a client from what it holds to what it should, None for nothing; and the names that are
    gone. The same for all streams in this state."""
    names = store.diff(held, desired)
    response, missing = offer(names, desired)
    return (attrs.evolve(response, completes=desired) if names else None), missing


def offer(names: frozenset[str], desired: Snapshot) -> tuple[PendingResponse, tuple[str, ...]]:
    """A response with what there is of these names, and the names that do not exist."""
    order = sorted(names)
    found = [*map(desired.entries.get, order)]
    missing = tuple([name for name, resource in zip(order, found, strict=True) if resource is None])
    return PendingResponse(tuple([resource for resource in found if resource is not None])), missing


def content_digest(resources: Iterable[Resource], removed: Iterable[str] = (), suffixes: Iterable[str] = ()) -> int:
    """The digest of a response's content: its nonce."""
    digest = sum([resource.digest for resource in resources])
    if any(suffixes := tuple(suffixes)):
        text = "\0".join(suffixes).encode()
        digest += int.from_bytes(hashlib.blake2b(text, digest_size=16, person=b"marks").digest(), "big")
    for name in removed:
        digest += int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16, person=b"removed").digest(), "big")
    return digest & _DIGEST_MASK


def response_of(
    variant: Variant,
    type_url: str,
    pending: PendingResponse,
    state: Snapshot,
    clusters: Snapshot | None,
    *,
    is_full_state: bool,
) -> Response:
    """The response to a client that has ``state`` with it; the same object for all streams in this state.

    ``clusters``: those that versions are suffixed with, see ``version_suffix``; None for plain versions.
    """
    removed = pending.drops if variant is Variant.DELTA else ()
    suffixes: tuple[str, ...] = ()
    if is_full_state:
        resources, digest = state.listing, state.digest
    else:
        resources = pending.puts
        suffixes = () if clusters is None else tuple([version_suffix(r.name, clusters) for r in resources])
        digest = content_digest(resources, removed, suffixes)
    return Response(variant, type_url, state.version, f"{digest:032x}", resources, removed, suffixes, pending.touched)


def version_suffix(name: str, clusters: Snapshot) -> str:
    """The end of the version of endpoints for a client that has these clusters: the version of their cluster."""
    cluster = clusters.entries.get(name)
    return "" if cluster is None else f".{cluster.version[:8]}"


def presented_versions(desired: Snapshot, clusters: Snapshot | None) -> Mapping[str, str]:
    """The versions that a reconnecting Delta client presents which is up to date."""
    if clusters is None:
        return {name: resource.version for name, resource in desired.entries.items()}
    return {name: resource.version + version_suffix(name, clusters) for name, resource in desired.entries.items()}
