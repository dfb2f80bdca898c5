"""The proxies that have a stream here, and those that had one and have left."""

from __future__ import annotations

from datetime import datetime

import attrs

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.xds.ads.proxy_names import EqualNameLog

MAX_GONE = 1000
"""Proxies that have left and are remembered, the latest."""


@attrs.frozen
class GoneProxy:
    """A proxy that has left, and has not come back."""

    proxy: Proxy
    at: datetime
    """When its last stream ended."""
    revision: int
    """The last revision of which it had everything; 0: none."""


class KnownProxies:
    """State: the numbers of the open streams of each name, which several proxies may have; and those that have left."""

    def __init__(self) -> None:
        self._streams: dict[str, dict[int, Proxy]] = {}
        self._equal_names = EqualNameLog()
        self.gone: dict[str, GoneProxy] = {}
        """The proxies that have left and are not back, by node id, in the order of leaving."""

    def __repr__(self) -> str:
        return f"<KnownProxies {len(self._streams)} names connected, {len(self.gone)} gone>"

    def came(self, stream: int, proxy: Proxy) -> None:
        """It is known now of which proxy a stream is."""
        own = self._streams.setdefault(proxy.name, {})
        self._equal_names.came(proxy, own.values())
        own[stream] = proxy
        self.gone.pop(proxy.id, None)

    def left(self, stream: int, proxy: Proxy, at: datetime, revision: int) -> None:
        """A stream ended. Its proxy is remembered, unless it has another."""
        own = self._streams[proxy.name]
        del own[stream]
        if not own:
            del self._streams[proxy.name]
        if any(each.id == proxy.id for each in own.values()):
            return
        self.gone[proxy.id] = GoneProxy(proxy, at, revision)
        if len(self.gone) > MAX_GONE:
            del self.gone[next(iter(self.gone))]

    def streams_named(self, name: str) -> dict[int, Proxy]:
        """The open streams of all proxies of a name."""
        return self._streams.get(name, {})
