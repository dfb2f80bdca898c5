"""Which credentials the configs of a namespace name: those without a namespace of their own are only for these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import Index
from mesh_pilot.model.config import Config, ConfigKey

PREFIX = "kubernetes://"
"""May stand before a name."""


class CredentialUses:
    """Counts who names a credential; costs what a config names. State: that, and how often each is named."""

    def __init__(self, named: Index[tuple[str, str], bool]) -> None:
        """``named`` is by namespace and credential."""
        self._named = named
        self._of: dict[ConfigKey, frozenset[str]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    def put(self, key: ConfigKey, config: Config | None) -> None:
        before = self._of.pop(key, frozenset())
        after = credentials_named(config) if config is not None else frozenset()
        if after:
            self._of[key] = after
        for name in before ^ after:
            place = (key.namespace, name)
            self._counts[place] += 1 if name in after else -1
            if self._counts[place] == 0:
                del self._counts[place]
            self._named[place] = place in self._counts


def credentials_named(config: Config) -> frozenset[str]:
    """The ``credentialName``s of a Gateway's servers or a DestinationRule's policies; none of other kinds."""
    match config.spec:
        case api.Gateway() as gateway:
            found = [name for server in gateway.servers if server.tls for name in _of_server(server.tls)]
        case api.DestinationRule() as rule:
            found = [tls.credential_name for tls in _of_rule(rule) if tls]
        case _:
            return frozenset()
    return frozenset(name.removeprefix(PREFIX) for name in found if name)


def _of_server(tls: api.ServerTlsSettings) -> tuple[str, ...]:
    return (tls.credential_name, *tls.credential_names, tls.ca_cert_credential_name)


def _of_rule(rule: api.DestinationRule) -> Iterator[api.ClientTlsSettings | None]:
    for policy in (rule.traffic_policy, *(subset.traffic_policy for subset in rule.subsets)):
        if policy:
            yield policy.tls
            yield from (port.tls for port in policy.port_level_settings)
