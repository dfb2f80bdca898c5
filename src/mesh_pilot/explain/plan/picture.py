"""The picture of a control plane: all that decides what its proxies are served, as plain JSON and back.

Private keys never leave the plane: each is replaced by a stand-in of the same length, made from its digest, so that a
key that changes is told from one that stays. Other secrets, such as passwords in URLs, are redacted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import msgspec

from mesh_pilot.api.istio.extensions.v1alpha1 import WasmConfig
from mesh_pilot.model.events import ExtensionInForce, Item, Quarantine, Secret, WasmModule, item_key
from mesh_pilot.model.json import Json
from mesh_pilot.model.proxy import CLUSTERS, NodeError, Proxy
from mesh_pilot.model.redaction import redacted
from mesh_pilot.model.resource import CLUSTER, LISTENER
from mesh_pilot.safety.state.codec import FORMAT, CodecError, decode, encode
from mesh_pilot.safety.state.proxy_rows import proxy_of_row, proxy_row
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Variant
from mesh_pilot.xds.ads.status import Connection

Key = tuple[str, ...]

ITEMS_AT_ONCE = 10
"""Items that are encoded before other threads get their turn: about a millisecond's worth."""
PAUSE_SECONDS = 0.0002
"""The turn of the others: a real sleep, as giving up the lock alone seldom lets a waiting thread in."""


class PictureError(ValueError):
    """A picture that cannot be read: the reason."""


@attrs.frozen
class ConnectedProxy:
    """A proxy, and how it asks."""

    proxy: Proxy
    variant: Variant = Variant.SOTW
    types: tuple[str, ...] = ()
    """The types that it asks for; empty: those that an Envoy asks for."""
    listeners: tuple[str, ...] = ()
    """Listeners that a proxyless gRPC client asks for by name."""
    clusters: tuple[str, ...] = ()
    """Clusters that a proxy which gets them on demand has asked for."""


@attrs.frozen
class PlanePicture:
    """The items of all sources, in the sources' order of precedence, and the settings that decide how they are read."""

    items: Mapping[str, Mapping[Key, Item]]
    settings: Mapping[str, str]
    """The `World.settings`."""
    revision: int = 0
    version: str = ""
    """The version of mesh-pilot."""
    unsynced: tuple[str, ...] = ()
    """Sources whose first full picture the plane does not have yet."""
    is_whole: bool = True
    """False: there may be registries and credentials next to, as next to a folder."""
    kept_back: Mapping[str, str] = attrs.field(factory=dict)
    """The objects, by name, that not all proxies have as they are written, and why."""


# -- on the plane


def take_picture(world: World, version: str, kept_back: Mapping[str, str] = MappingProxyType({})) -> Callable[[], Json]:
    """The picture of a World as of now, which costs a shallow copy of its items, to be encoded as JSON by the function.

    That is for a thread: it gives others their turn after every few items.
    """
    items = {source: tuple(world.items_of(source).values()) for source in world.sources()}
    head: dict[str, Json] = {
        "format": FORMAT,
        "version": version,
        "revision": world.revision,
        "settings": dict(world.settings),
        "unsynced": list(world.unsynced()),
        "kept_back": dict(kept_back),
    }
    return lambda: {**head, "sources": {source: _packed(of) for source, of in items.items()}}


def _packed(items: Iterable[Item]) -> str:
    encoded: list[bytes] = []
    for number, item in enumerate(items, 1):
        encoded.append(encode(without_secrets(item)))
        if number % ITEMS_AT_ONCE == 0:
            time.sleep(PAUSE_SECONDS)
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(encoded), 1)).decode()


def without_secrets(item: Item) -> Item:
    """The same item with stand-ins for private keys, and other secrets redacted. Both sides of a plan pass it."""
    match item:
        case Secret() if item.is_private:
            key, config = (_stand_in(part) for part in (item.private_key, item.docker_config))
            item = attrs.evolve(item, private_key=key, docker_config=config)
        case WasmModule():
            item = attrs.evolve(item, path="")  # a file of the plane's machine
        case ExtensionInForce():
            settings = bytes(redacted(WasmConfig.parse(item.spec)))
            item = attrs.evolve(item, spec=settings, module=attrs.evolve(item.module, path=""))
        case Quarantine():
            withheld = (
                attrs.evolve(
                    each,
                    refused=tuple(map(without_secrets, each.refused)),
                    served=tuple(map(without_secrets, each.served)),
                )
                for each in item.withheld
            )
            item = attrs.evolve(item, withheld=tuple(withheld))
    shown: Item = redacted(item)
    return shown


def _stand_in(private_key: bytes) -> bytes:
    digest = f"blanked {hashlib.blake2b(private_key, digest_size=32).hexdigest()} ".encode()
    return (digest + b"-" * len(private_key))[: len(private_key)]


def proxy_rows(connections: Iterable[Connection]) -> Iterator[Json]:
    """The connected proxies as JSON, each once: agents' own streams are left out."""
    found: set[str] = set()
    for connection in connections:
        proxy, stream = connection.proxy, connection.stream
        if proxy is None or stream is None or connection.is_agent or proxy.id in found:
            continue
        types = [each.type_url for each in stream.statistics()]
        named: dict[str, Json] = {}
        if proxy.is_grpc:
            named["listeners"] = sorted(stream.names(LISTENER))
        if proxy.text(CLUSTERS) == "on-demand":
            named["clusters"] = sorted(stream.names(CLUSTER))
        found.add(proxy.id)
        row: dict[str, Any] = {"id": proxy.id, **proxy_row(proxy), "domains": list(proxy.domains)}
        yield {**row, "xds": connection.variant.value, "types": types, **named}


# -- where it is read


def read_picture(value: Any) -> PlanePicture:
    """The picture in such JSON. Raises PictureError."""
    try:
        if value["format"] != FORMAT:
            raise PictureError(f"the layout has number {value['format']}, this version of mesh-pilot reads {FORMAT}")
        items = {
            source: {item_key(item): item for item in _unpacked(text)} for source, text in value["sources"].items()
        }
        settings = {name: str(text) for name, text in value["settings"].items()}
        unsynced = tuple(map(str, value["unsynced"]))
        kept_back = {str(name): str(why) for name, why in value.get("kept_back", {}).items()}
        revision, version = int(value["revision"]), str(value["version"])
        return PlanePicture(items, settings, revision, version, unsynced, kept_back=kept_back)
    except (KeyError, TypeError, AttributeError, CodecError, msgspec.MsgspecError, zlib.error, binascii.Error) as error:
        raise PictureError(f"{type(error).__name__}: {error}") from None


def _unpacked(text: str) -> Iterator[Item]:
    return map(decode, _lists.decode(zlib.decompress(base64.b64decode(text))))


_lists = msgspec.msgpack.Decoder(list[bytes])


def read_proxies(rows: Any) -> list[ConnectedProxy]:
    """The proxies in such JSON, by name. Raises PictureError."""
    try:
        found = [_connected(row) for row in rows]
    except (KeyError, TypeError, ValueError, AttributeError, NodeError) as error:
        raise PictureError(f"{type(error).__name__}: {error}") from None
    return sorted(found, key=lambda each: (each.proxy.name, each.proxy.id))


def _connected(row: Mapping[str, Any]) -> ConnectedProxy:
    proxy = attrs.evolve(proxy_of_row(row["id"], row), domains=tuple(row["domains"]))
    lists = (tuple(row.get(name, ())) for name in ("types", "listeners", "clusters"))
    return ConnectedProxy(proxy, Variant(row["xds"]), *lists)
