"""The settings of Consul: the way to an agent, the queries, and the meaning of the answers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from mesh_pilot.model.service import Protocol

DEFAULT_PARTITION = DEFAULT_NAMESPACE = "default"
PEER_REREAD_SECONDS = 30.0
"""The interval at which an imported service without a query is read: nothing else tells its changes."""


class Consistency(StrEnum):
    """The consistency of reads, in Consul's terms."""

    DEFAULT = "default"
    CONSISTENT = "consistent"
    STALE = "stale"
    """Any server may answer, also without a leader."""


class WarningRule(StrEnum):
    """The treatment of an instance with a check in state warning."""

    IN = "in"
    OUT = "out"
    UNHEALTHY = "unhealthy"


class CriticalRule(StrEnum):
    """The treatment of an instance that is critical or under maintenance."""

    OUT = "out"
    UNHEALTHY = "unhealthy"
    """Known to proxies as unhealthy: used when too few others are left (panic routing)."""


class IntentionDefault(StrEnum):
    """The policy for connections that no intention is about."""

    AUTO = "auto"
    """As Consul says."""
    ALLOW = "allow"
    DENY = "deny"


class ConsulAddressError(ValueError):
    """An address of an agent that can't be read, with what a good one looks like."""


@attrs.frozen(kw_only=True)
class Tls:
    """The TLS settings of an agent. Files are PEM."""

    ca_file: Path | None = None
    ca_path: Path | None = None
    """Folder of CA certificates, hashed as OpenSSL wants it."""
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""
    """The name its certificate must have, where that is not the host of the address."""
    verify: bool = True


@attrs.frozen
class Agent:
    """The address and credentials of one agent."""

    address: str = "http://127.0.0.1:8500"
    """``http://host:port``, ``https://host:port``, ``host:port`` or ``unix:///path``."""
    token: str = attrs.field(default="", repr=False)
    token_file: Path | None = None
    """Read again whenever it has changed; wins over ``token``."""
    basic_auth: str = attrs.field(default="", repr=False)
    """``user:password`` for a proxy before it."""
    tls: Tls = Tls()
    use_tls: bool = False
    """HTTPS although the address does not say so (``CONSUL_HTTP_SSL``)."""

    @property
    def base_url(self) -> str:
        """The URL that paths are added to. Raises AddressError."""
        if self.socket_path:
            return "http://consul.socket"
        text = self.address if "://" in self.address else f"http://{self.address}"
        parts = urlsplit(text)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConsulAddressError(
                f"{self.address!r} is not an address of a Consul agent: http://host:8500, https://host:8501 or unix:///path"
            )
        scheme = "https" if self.use_tls else parts.scheme
        default = 8501 if scheme == "https" else 8500
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{scheme}://{host}:{port or default}{parts.path.rstrip('/')}"

    @property
    def socket_path(self) -> str:
        """The Unix socket it listens on; empty for TCP."""
        return self.address.removeprefix("unix://") if self.address.startswith("unix://") else ""


@attrs.frozen(kw_only=True)
class ConsulTiming:
    """Waits, in seconds of Trio's clock."""

    wait_seconds: float = 60.0
    """The time that a blocking query may stay unanswered (Consul adds up to a sixteenth). An agent that disappears
    silently is noticed after about that time."""
    reread_seconds: float = 600.0
    """The interval at which a service without a query is read in any case, with few services;"""
    reread_each_seconds: float = 1.0
    """with many, this time for each: what is asked while nothing happens does not grow with their number."""
    hidden_seconds: float = 3.0
    """The time after which a change is looked for that may hide behind another one."""
    grace_seconds: float = 10.0
    """The grace period of an answer that is later than promised."""
    connect_seconds: float = 5.0
    retry_seconds: float = 0.5
    """The first wait before a query that failed is tried again; each next may be twice as long,"""
    retry_limit_seconds: float = 15.0
    """up to this."""
    hold_seconds: float = 30.0
    """The time for which objects stay that are missing from a suddenly empty answer; inf: forever."""
    pace_seconds: float = 0.5
    """The interval between queries that keep returning at once, after a burst of a few."""
    trigger_pace_seconds: float = 0.05
    """The same, for the queries that cover all services."""


@attrs.frozen(kw_only=True)
class ConsulSettings:
    """One datacenter as seen through one agent."""

    agent: Agent = Agent()
    datacenter: str = ""
    """The datacenter to read; empty: the agent's own."""
    remote: bool = False
    """Not the datacenter of this mesh's own proxies: its hosts are ``<name>.service.<datacenter>.<domain>``."""
    merged: bool = False
    """True for a remote one whose instances also serve the hosts of its services in the mesh's own datacenter."""
    merges_others: bool = False
    """True for the mesh's own if instances of other datacenters also serve its hosts."""
    peer: str = ""
    """The peer whose services are read, as this datacenter has imported them; empty: its own are."""
    peers: tuple[str, ...] = ()
    """The peers that are read, too, as separate sources; of the mesh's own datacenter."""
    domain: str = "consul"
    partition: str = ""
    consul_namespace: str = ""
    """Consul Enterprise's partition and namespace, passed through."""
    consistency: Consistency = Consistency.DEFAULT
    service_filter: str = ""
    """An expression of Consul's filter language over a service's health entries; others are not there."""
    service_tag: str = ""
    """Only services, and instances, that carry this tag; empty: all."""
    config_prefix: str = ""
    """The prefix of Istio objects in the KV store; empty: none are read."""
    mesh: bool = False
    """Config entries and intentions are read, too; of a peer, those entries that say for whom it takes over."""
    connect: bool = False
    """Proxies of Consul's own mesh are called by its mutual TLS, and let in. Needs ``mesh``."""
    intention_default: IntentionDefault = IntentionDefault.AUTO
    namespace: str = "default"
    """The mesh's namespace that services live in unless their metadata says another."""
    default_protocol: Protocol = Protocol.AUTO
    service_port: int = 0
    """The port of services that name none; 0: the lowest port of their instances."""
    address_tag: str = ""
    """The tagged address that endpoints have, such as ``wan``, if their instance has it."""
    warning: WarningRule = WarningRule.IN
    critical: CriticalRule = CriticalRule.OUT
    max_queries: int = 60
    """Queries at once, and with them connections; Consul's own limit is 200 a client, with those of our last lives
    (``http_max_conns_per_client``): it keeps what we gave up until it would have answered."""
    max_starts: int = 16
    """The number of them that may be queries that Consul answers immediately, as at the start and after an outage."""
    timing: ConsulTiming = ConsulTiming()

    def for_peer(self, name: str) -> ConsulSettings:
        """The settings for what this datacenter, the mesh's own, has imported from a peer."""
        reread = min(self.timing.reread_seconds, PEER_REREAD_SECONDS)
        return attrs.evolve(
            self,
            peer=name,
            peers=(),
            remote=True,
            merges_others=False,
            connect=False,
            config_prefix="",
            timing=attrs.evolve(self.timing, reread_seconds=reread),
        )

    @property
    def place(self) -> str:
        """The settings that decide what is read; see `sources.base.contract.Placed`."""
        names = [field.name for field in attrs.fields(ConsulSettings) if field.name not in _NOT_OF_PLACE]
        values = [f"{name}={value}" for name in names if (value := getattr(self, name)) not in _NOTHING]
        return " ".join((f"Consul at {self.agent.socket_path or self.agent.base_url}", *values))


_NOTHING = ("", 0, False, (), IntentionDefault.AUTO)
_NOT_OF_PLACE = frozenset(("agent", "consistency", "max_queries", "max_starts", "timing"))
"""Settings that do not decide what is read."""
