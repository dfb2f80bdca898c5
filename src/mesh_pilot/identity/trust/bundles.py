"""The roots that workloads trust: those of the mesh's own CA and foreign ones, each put here by whoever knows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from mesh_pilot.identity.trust.callers import TrustDomains

OWN_CA = "ca"
"""The source of the roots of the mesh's own CA."""


@attrs.frozen
class Bundle:
    """Roots of one CA, or of several together."""

    roots: tuple[bytes, ...] = ()
    """Certificates, each in PEM."""
    crls: tuple[bytes, ...] = ()
    """Certificate revocation lists, each in PEM: one in force of every CA below these roots that signs leaves, or none
    (see ``crls_for_proxies``)."""


class TrustStore:
    """The bundles by trust domain; listeners are told when one changes.

    Mutable state: the bundles, and the trust domains that are the mesh's own.
    """

    def __init__(self) -> None:
        self._bundles: dict[tuple[str, str], Bundle] = {}
        self.domains = TrustDomains("cluster.local")
        """The mesh's own trust domain and its aliases."""
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change."""
        self._listeners.append(listener)

    def put(self, source: str, bundle: Bundle, *, trust_domain: str = "") -> None:
        """Replace what ``source`` (the own CA, a file, a URL) says of a trust domain; empty: the mesh's own."""
        if self._bundles.get((source, trust_domain), Bundle()) == bundle:
            return
        self._bundles[source, trust_domain] = bundle
        if bundle == Bundle():
            del self._bundles[source, trust_domain]
        self._notify()

    def set_domains(self, domains: TrustDomains) -> None:
        """Replace the mesh's own trust domain and its aliases."""
        if domains != self.domains:
            self.domains = domains
            self._notify()

    def foreign_bundles(self) -> dict[tuple[str, str], Bundle]:
        """All bundles but that of the mesh's own CA, by source and trust domain."""
        return {key: bundle for key, bundle in self._bundles.items() if key[0] != OWN_CA}

    def replace_foreign(self, bundles: Mapping[tuple[str, str], Bundle]) -> None:
        """Make ``foreign_bundles`` these."""
        for source, domain in {*self.foreign_bundles(), *bundles}:
            self.put(source, bundles.get((source, domain), Bundle()), trust_domain=domain)

    def own(self) -> Bundle:
        """The bundle that vouches for workloads of the mesh's own trust domain."""
        return _joined(
            bundle for (_, domain), bundle in sorted(self._bundles.items(), key=lambda item: item[0]) if not domain
        )

    def foreign(self) -> dict[str, Bundle]:
        """The bundles of other trust domains, by name."""
        domains = sorted({domain for _, domain in self._bundles if domain})
        return {
            d: _joined(b for (_, domain), b in sorted(self._bundles.items(), key=lambda item: item[0]) if domain == d)
            for d in domains
        }

    def all(self) -> Bundle:
        """The bundle for all that a workload may meet."""
        return _joined([self.own(), *self.foreign().values()])

    def crls_for_proxies(self) -> tuple[bytes, ...]:
        """The revocation lists that Envoys may be given: all if every bundle has some, else none.

        An Envoy with any list refuses each leaf whose issuer has none (Envoy, ``CertificateValidationContext.crl``), so
        a foreign CA without lists would be cut off. Set ``only_verify_leaf_cert_crl`` besides.
        """
        complete = all(bundle.crls for bundle in self._bundles.values() if bundle.roots)
        return self.all().crls if complete else ()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def _joined(bundles: Iterable[Bundle]) -> Bundle:
    parts = list(bundles)
    roots = dict.fromkeys(root for part in parts for root in part.roots)
    crls = dict.fromkeys(crl for part in parts for crl in part.crls)
    return Bundle(tuple(roots), tuple(crls))
