"""Federation: the source of the foreign roots that ``caCertificates`` of the MeshConfig name, in PEM or by URL.

Roots go into the TrustStore, under the trust domains that they are for. A bundle at a URL is fetched again when it
says so, every five minutes by default. While that fails, the last good one is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import attrs
import structlog
import trio

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.base.offload import offload
from mesh_pilot.identity.trust.bundles import Bundle, TrustStore
from mesh_pilot.identity.trust.callers import TrustDomains
from mesh_pilot.identity.trust.key_set_fetch import fetch_json
from mesh_pilot.identity.trust.spiffe_bundles import BundleDocument, BundleError, read_bundle, roots_in
from mesh_pilot.istio.rules.mesh_config import full_bundle_url
from mesh_pilot.model.events import EventSender, Synced
from mesh_pilot.net.fetching import Fetcher, FetchError, shown_url
from mesh_pilot.net.fetching.refreshing import Refresh, RefreshStatistics, Rounds, refresh_statistics

REFRESH_SECONDS = 300.0
"""The interval between fetches of a bundle that does not say; SPIFFE recommends it."""
MIN_REFRESH_SECONDS, MAX_REFRESH_SECONDS = 10.0, 3600.0
"""The bounds of what a bundle says."""
TIMEOUT_SECONDS = 10.0

IN_MESH_CONFIG = "caCertificates"
"""The source, in the TrustStore, of roots that are in the MeshConfig itself."""

Fetch = Callable[[str], Awaitable[BundleDocument]]
"""Fetches the bundle at a URL. Raises FetchError."""

log = structlog.get_logger(scope="security")


@attrs.frozen
class ForeignRoots:
    """The roots that a MeshConfig names. The trust domain "" is the mesh's own, with its aliases."""

    inline: Mapping[str, tuple[bytes, ...]]
    """Roots by trust domain."""
    urls: Mapping[str, tuple[str, ...]]
    """The trust domains of each URL of a bundle."""


def foreign_roots(mesh: MeshConfig) -> ForeignRoots:
    """The roots of ``caCertificates``. Without ``trustDomains`` they vouch for the mesh's own workloads."""
    inline: dict[str, dict[bytes, None]] = {}
    urls: dict[str, dict[str, None]] = {}
    for data in mesh.ca_certificates:
        domains = ["" if domain == mesh.trust_domain else domain for domain in data.trust_domains] or [""]
        if data.pem:
            roots = roots_in(data.pem)
            for domain in domains:
                inline.setdefault(domain, {}).update(dict.fromkeys(roots))
        elif data.spiffe_bundle_url:
            urls.setdefault(full_bundle_url(data.spiffe_bundle_url), {}).update(dict.fromkeys(domains))
    return ForeignRoots({d: tuple(roots) for d, roots in inline.items()}, {u: tuple(d) for u, d in urls.items()})


@attrs.define(eq=False)
class _Endpoint(Refresh):
    """A URL of a bundle. State: its roots, and how the last try went."""

    domains: tuple[str, ...]
    roots: tuple[bytes, ...] = ()

    @property
    def is_in_force(self) -> bool:
        return bool(self.roots)


class Federation:
    """Implements ``sources.base.contract.Source``, for the TrustStore rather than for the World.

    State: the endpoints of bundles, and the trust domains with roots in the MeshConfig.
    """

    name = "trust-bundles"

    def __init__(
        self, trust: TrustStore, mesh: Callable[[], MeshConfig], others_synced: Callable[[], bool], *, fetch: Fetch
    ) -> None:
        """``mesh`` gives the MeshConfig in force; ``others_synced`` is True once it is that of the sources."""
        self._trust = trust
        self._mesh = mesh
        self._others_synced = others_synced
        self._fetch = fetch
        self._inline: Mapping[str, tuple[bytes, ...]] = {}
        self._endpoints: dict[str, _Endpoint] = {}
        self._wake = trio.Event()
        self._synced = False
        self._rounds = Rounds(self.wake)
        self._crls_are_idle = False
        trust.on_change(self._check_crls)

    def __repr__(self) -> str:
        return f"<Federation of {len(self._endpoints)} bundles {'synced' if self._synced else 'not synced'}>"

    def wake(self) -> None:
        """The MeshConfig may have changed, or the other sources have synced."""
        self._wake.set()

    def statistics(self) -> RefreshStatistics:
        return refresh_statistics(self._endpoints.values(), "bundles", synced=self._synced)

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the MeshConfig until cancelled. What is in force stays then."""
        self._synced = False
        self._rounds.begin()
        for endpoint in self._endpoints.values():
            endpoint.scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            task_status.started()
            for endpoint in self._endpoints.values():
                nursery.start_soon(self._refresh, endpoint)
            seen = None
            while True:
                self._wake = trio.Event()
                mesh = self._mesh()
                if mesh is not seen:
                    seen = mesh
                    self._trust.set_domains(TrustDomains(mesh.trust_domain, frozenset(mesh.trust_domain_aliases)))
                    for new in self._follow(foreign_roots(mesh)):
                        nursery.start_soon(self._refresh, new)
                is_due = not self._synced and self._others_synced()
                if is_due and self._rounds.is_first_over(self._endpoints.values()):
                    self._synced = True
                    await events.send(Synced(self.name))
                await self._rounds.wait(self._wake, synced=self._synced)

    def _follow(self, wanted: ForeignRoots) -> list[_Endpoint]:
        """Put the roots of the MeshConfig in force, and drop what it no longer names. Returns new endpoints."""
        for domain in {*self._inline, *wanted.inline}:
            self._trust.put(IN_MESH_CONFIG, Bundle(wanted.inline.get(domain, ())), trust_domain=domain)
        self._inline = wanted.inline
        for url in [url for url in self._endpoints if url not in wanted.urls]:
            gone = self._endpoints.pop(url)
            gone.scope.cancel()
            self._put(gone, (), gone.domains)
        new = [_Endpoint(url, domains) for url, domains in wanted.urls.items() if url not in self._endpoints]
        self._endpoints |= {endpoint.of: endpoint for endpoint in new}
        for url, domains in wanted.urls.items():
            endpoint = self._endpoints[url]
            self._put(endpoint, (), set(endpoint.domains) - set(domains))
            endpoint.domains = domains
            self._put(endpoint, endpoint.roots, domains)
        return new

    def _put(self, endpoint: _Endpoint, roots: tuple[bytes, ...], domains: Iterable[str]) -> None:
        for domain in domains:
            self._trust.put(endpoint.of, Bundle(roots), trust_domain=domain)

    def _check_crls(self) -> None:
        """Warn once while there are revocation lists that Envoys do not look at."""
        trust = self._trust
        are_idle = bool(trust.own().crls and (trust.foreign() or not trust.crls_for_proxies()))
        if are_idle and not self._crls_are_idle:
            log.warning(
                "certificates on the CA's revocation list are accepted by proxies while caCertificates names roots: "
                "the validator that keeps trust domains apart knows no such lists, and a list of each CA is needed; "
                "keep lifetimes short",
                trust_domains=", ".join(trust.foreign()) or "the mesh's own",
            )
        self._crls_are_idle = are_idle

    async def _refresh(self, endpoint: _Endpoint) -> None:
        shown = shown_url(endpoint.of)

        async def take(found: BundleDocument) -> float:
            if found.roots != endpoint.roots:
                log.info("trust bundle", url=shown, trust_domains=_names(endpoint), roots=len(found.roots))
                endpoint.roots = found.roots
            self._put(endpoint, found.roots, endpoint.domains)
            hint = found.refresh_hint_seconds or REFRESH_SECONDS
            return min(max(hint, MIN_REFRESH_SECONDS), MAX_REFRESH_SECONDS)

        async def failed(reason: str, is_new: bool) -> None:
            if not is_new:
                return
            stays = "the last good one is kept" if endpoint.roots else "no roots of it are trusted"
            log.warning(
                "trust bundle fetch failed",
                url=shown,
                trust_domains=_names(endpoint),
                reason=reason,
                meanwhile=stays,
            )

        await self._rounds.run(
            endpoint,
            lambda: self._fetch(endpoint.of),
            take,
            failed,
            lambda: log.info("trust bundle fetch recovered", url=shown),
        )


def _names(endpoint: _Endpoint) -> str:
    return ", ".join(domain or "the mesh's own" for domain in endpoint.domains)


def fetching(roots: Path | None) -> Fetch:
    """A Fetch whose servers are verified by the system's roots, or by those of a PEM file instead.

    Redirections are not followed: the URL in the MeshConfig is who is trusted.
    """

    fetcher = Fetcher(roots=roots)

    async def fetch(url: str) -> BundleDocument:
        document = await fetch_json(fetcher, url, TIMEOUT_SECONDS, redirects=0)
        try:
            return await offload(True, partial(read_bundle, document))
        except BundleError as error:
            raise FetchError(f"{shown_url(url)} has no SPIFFE bundle: {error}") from None

    return fetch
