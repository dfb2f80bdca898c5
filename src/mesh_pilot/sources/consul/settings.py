"""What can be set about Consul: how to reach an agent, what to ask it, what its answers mean."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from mesh_pilot.model.service import Protocol


class Consistency(StrEnum):
    """How fresh answers must be, as Consul names it."""

    DEFAULT = "default"
    CONSISTENT = "consistent"
    STALE = "stale"
    """Any server may answer, also without a leader."""


class WarningRule(StrEnum):
    """What becomes of an instance with a check in state warning."""

    IN = "in"
    OUT = "out"
    UNHEALTHY = "unhealthy"


class CriticalRule(StrEnum):
    """What becomes of an instance that is critical or under maintenance."""

    OUT = "out"
    UNHEALTHY = "unhealthy"
    """Known to proxies as unhealthy: used when too few others are left (panic routing)."""


class AddressError(ValueError):
    """An address of an agent that can't be read, with what a good one looks like."""


@attrs.frozen(kw_only=True)
class Tls:
    """How to talk TLS to an agent. Files are PEM."""

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
    """How to reach one agent."""

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
            raise AddressError(
                f"{self.address!r} is no address of a Consul agent: http://host:8500, https://host:8501 or unix:///path"
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
class Timing:
    """How long to wait for what, in seconds of Trio's clock."""

    wait_seconds: float = 60.0
    """How long a blocking query may stay unanswered (Consul adds up to a sixteenth). An agent that is gone without a
    word is noticed after about so long."""
    reread_seconds: float = 600.0
    """How often a service is read anyway that holds no query, because there are more than ``max_queries``."""
    sweep_seconds: float = 60.0
    """How long such services may stay unread while others change that say so themselves."""
    grace_seconds: float = 10.0
    """How much later than promised an answer may come."""
    connect_seconds: float = 5.0
    retry_seconds: float = 0.5
    """The first wait before a query that failed is tried again; each next may be twice as long,"""
    retry_limit_seconds: float = 15.0
    """up to this."""
    hold_seconds: float = 30.0
    """How long an answer must stay empty that was not empty before, until it is believed; inf: for ever."""
    pace_seconds: float = 0.5
    """Where a query returns again and again it is asked no more often than this, after a few times at once."""
    trigger_pace_seconds: float = 0.05
    """The same of queries that cover all services, where there are more than ``max_queries``."""


@attrs.frozen(kw_only=True)
class ConsulSettings:
    """One datacenter as seen through one agent."""

    agent: Agent = Agent()
    datacenter: str = ""
    """Which one to ask for; empty: the agent's own."""
    remote: bool = False
    """Not the datacenter of this mesh's own proxies: its hosts are ``<name>.service.<datacenter>.<domain>``."""
    merged: bool = False
    """Of a remote one: its instances also serve the host that its services have in the mesh's own datacenter."""
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
    """Where in the KV store Istio objects stand; empty: nowhere."""
    namespace: str = "default"
    """The mesh's namespace that services live in unless their metadata says another."""
    default_protocol: Protocol = Protocol.AUTO
    service_port: int = 0
    """What clients call services by that do not say; 0: the lowest port of their instances."""
    address_tag: str = ""
    """Which tagged address endpoints have, such as ``wan``, where there is one."""
    warning: WarningRule = WarningRule.IN
    critical: CriticalRule = CriticalRule.OUT
    max_queries: int = 60
    """Queries at once, and with them connections; Consul's own limit is 200 a client, with those of our last lives
    (``http_max_conns_per_client``): it keeps what we gave up until it would have answered."""
    max_starts: int = 16
    """How many of them may be such as are answered immediately: at the start and after an outage."""
    timing: Timing = Timing()
