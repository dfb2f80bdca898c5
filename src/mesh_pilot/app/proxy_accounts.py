"""The service accounts of connected proxies, for whoever rules on what they may have."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.kubernetes.source.secret_accounts import SecretAccounts
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.spiffe import parse_identity
from mesh_pilot.safety.state.revision_log import Effects
from mesh_pilot.xds.ads.status import StatusRegistry


class ProxyAccounts:
    """The proven service accounts of connected proxies. State: who knows the proxies, once that is known."""

    def __init__(self) -> None:
        self.rulings = SecretAccounts(self._connected)
        self._effects: Effects | None = None

    def follow(self, status: StatusRegistry, effects: Effects) -> None:
        """``status`` knows who connects to this worker, ``effects`` the proxies of all."""
        self._effects = effects
        status.newcomers.append(self._came)

    def _came(self, proxy: Proxy) -> None:
        account = account_of(proxy)
        if account is not None:
            self.rulings.came(account)

    def _connected(self) -> Iterator[tuple[str, str]]:
        for each in self._effects.proxies() if self._effects is not None else ():
            account = account_of(each.proxy) if each.proxy is not None else None
            if account is not None:
                yield account


def account_of(proxy: Proxy) -> tuple[str, str] | None:
    """Namespace and name of the service account that a proxy is proven to have; None if there is none."""
    identity = parse_identity(proxy.identity)
    return (identity.namespace, identity.service_account) if identity is not None else None
