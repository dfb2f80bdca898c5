"""The flags of ``mesh-pilot discovery`` about Consul, and the environment variables of Consul's own tools."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import attrs
import click

from mesh_pilot.cli.lib.consul_agent import ConsulAgentFlags
from mesh_pilot.cli.lib.options import duration
from mesh_pilot.model.flags import FlagKind, flag

if TYPE_CHECKING:
    from mesh_pilot.app.settings import Settings
    from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
    from mesh_pilot.model.service import Protocol

_FEW_QUERIES = 16
_PEER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_flag = partial(flag, section="Consul")


def protocol(text: str) -> Protocol:
    """A protocol as Istio spells it, in any case; ``auto`` is found out by looking at the bytes. Raises ValueError."""
    from mesh_pilot.model.service import Protocol

    found = Protocol.parse(text)
    if found is Protocol.AUTO and text.lower() != "auto":
        raise ValueError(f"{text!r} is not a protocol: http, http2, grpc, tcp, tls, ..., or auto")
    return found


def hold(text: str) -> float:
    """A duration, or ``forever``."""
    return math.inf if text == "forever" else duration.read(text)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsulFlags(ConsulAgentFlags):
    """How services are read there. What of these holds for the first datacenter alone is said below."""

    consul_merge_datacenters: bool = _flag(
        "--consul-merge-datacenters",
        default=False,
        help="Instances of other datacenters also serve the host of the own one.",
        doc="Instances of [other datacenters](consul.md#several-datacenters) also serve the host of the own one.",
    )
    consul_peer: tuple[str, ...] = _flag(
        "--consul-peer",
        default=(),
        repeats=True,
        help="Cluster peer whose exported services are read; repeatable.",
        doc="[Cluster peer](consul-peering.md) whose exported services are read; repeatable.",
    )
    consul_consistency: str = _flag(
        "--consul-consistency", default="default", kind=("default", "consistent", "stale"), help="Consistency of reads."
    )
    consul_partition: str = _flag("--consul-partition", default="", help="Partition of Consul Enterprise.")
    consul_namespace: str = _flag("--consul-namespace", default="", help="Namespace of Consul Enterprise.")
    consul_service_filter: str = _flag(
        "--consul-service-filter", default="", help="Consul filter expression that instances must fulfil."
    )
    consul_service_tag: str = _flag(
        "--consul-service-tag", default="", help="Tag that services and instances must carry."
    )
    consul_domain: str = _flag("--consul-domain", default="consul", help="Hosts are NAME.service.DOMAIN.")
    consul_config_prefix: str = _flag(
        "--consul-config-prefix",
        default="",
        help="KV prefix of Istio objects, such as mesh-pilot/config.",
        doc="KV prefix of Istio objects, such as `mesh-pilot/config`.",
    )
    consul_mesh: bool = _flag(
        "--consul-mesh/--no-consul-mesh",
        default=False,
        help="Consul's config entries and intentions become routes, rules and policies.",
        doc="[Consul's config entries and intentions](consul-mesh.md) become routes, rules and policies.",
    )
    consul_connect: bool = _flag(
        "--consul-connect/--no-consul-connect",
        default=False,
        help="Mutual TLS with proxies of Consul's own mesh; needs --consul-mesh.",
        doc="[Mutual TLS with proxies of Consul's mesh](migrate-consul.md); needs `--consul-mesh`.",
    )
    consul_intention_default: str = _flag(
        "--consul-intention-default",
        default="auto",
        kind=("auto", "allow", "deny"),
        help="Without an intention; auto: as Consul says.",
    )
    consul_mesh_namespace: str = _flag(
        "--consul-mesh-namespace", default="default", help="Namespace of services that do not name one."
    )
    consul_default_protocol: Protocol | None = _flag(
        "--consul-default-protocol", text="auto", kind=protocol, help="Protocol of services that do not name one."
    )
    consul_service_port: int = _flag(
        "--consul-service-port",
        default=0,
        least=0,
        most=65535,
        help="Port of services without one; 0: that of instances.",
    )
    consul_address_tag: str = _flag(
        "--consul-address-tag", default="", help="Tagged address to reach instances at, such as wan."
    )
    consul_short_names: bool | None = _flag(
        "--consul-short-names/--no-consul-short-names",
        help="Bare names are services of Consul.  [default: yes, without Kubernetes]",
        doc="Short names are services of Consul: `reviews` is `reviews.service.consul`.",
    )
    consul_warning: str = _flag(
        "--consul-warning", default="in", kind=("in", "out", "unhealthy"), help="Instances in state warning."
    )
    consul_critical: str = _flag(
        "--consul-critical", default="out", kind=("out", "unhealthy"), help="Critical and in maintenance."
    )
    consul_hold: float = _flag(
        "--consul-hold",
        default=30.0,
        text="30s",
        kind=hold,
        help="Time for which what Consul suddenly lacks is kept; or forever.",
    )
    consul_wait: float = _flag(
        "--consul-wait", default=60.0, kind=FlagKind.DURATION, help="Time that a blocking query waits."
    )
    consul_max_queries: int = _flag(
        "--consul-max-queries", default=60, least=_FEW_QUERIES, help="Queries at once, at most; by agent."
    )

    def registry(self, environment: Mapping[str, str], is_named: bool | None, mesh: Settings) -> ConsulRegistry | None:
        """The datacenters that are named; None if no agent is, or not ``is_named``. Raises UsageError."""
        datacenters = self.datacenters(environment) if is_named is not False else ()
        if not datacenters:
            return None
        from mesh_pilot.consul.source import ConsulRegistry

        return ConsulRegistry(datacenters, self.consul_short_names)

    def datacenters(self, environment: Mapping[str, str]) -> tuple[ConsulSettings, ...]:
        """The datacenters to follow, the mesh's own first; empty if no agent is named. Raises UsageError."""
        pairs = self.agents(environment)
        if self._namespace(environment) == "*":
            reason = "Consul's catalog does not say of which namespace a service is; name one"
            raise click.UsageError(f"--consul-namespace: {reason}")
        if self.consul_connect:
            self._check_connect(environment)
        sharing = Counter(url for url, _ in pairs)
        for peer in self.consul_peer:
            if not pairs:
                raise click.UsageError("--consul-peer needs an agent to ask: --consul-server-url")
            if not _PEER.fullmatch(peer):
                raise click.UsageError(f"--consul-peer: {peer!r} is not a peer's name: small letters, digits and -")
            sharing[pairs[0][0]] += 1
        return tuple(
            self._datacenter(
                self.agent(url, environment),
                datacenter,
                environment,
                is_first=rank == 0,
                max_queries=max(self.consul_max_queries // sharing[url], _FEW_QUERIES),
            )
            for rank, (url, datacenter) in enumerate(pairs)
        )

    def _check_connect(self, environment: Mapping[str, str]) -> None:
        """Refuse what Connect can't be used with. Raises UsageError."""
        if not self.consul_mesh:
            raise click.UsageError("--consul-connect needs --consul-mesh: callers are judged by intentions")
        if (
            self.consul_partition
            or self.consul_namespace
            or {"CONSUL_PARTITION", "CONSUL_NAMESPACE"} & environment.keys()
        ):
            raise click.UsageError("--consul-connect is for Consul without partitions and namespaces")

    def _namespace(self, environment: Mapping[str, str]) -> str:
        return self.consul_namespace or environment.get("CONSUL_NAMESPACE", "")

    def _datacenter(
        self, agent: Agent, datacenter: str, environment: Mapping[str, str], *, is_first: bool, max_queries: int
    ) -> ConsulSettings:
        from mesh_pilot.consul.client.settings import ConsulTiming, IntentionDefault
        from mesh_pilot.consul.source import Consistency, ConsulSettings, CriticalRule, WarningRule
        from mesh_pilot.model.service import Protocol

        return ConsulSettings(
            agent=agent,
            datacenter=datacenter,
            remote=not is_first,
            merged=self.consul_merge_datacenters and not is_first,
            merges_others=self.consul_merge_datacenters and is_first,
            peers=tuple(dict.fromkeys(self.consul_peer)) if is_first else (),
            domain=self.consul_domain.strip("."),
            partition=self.consul_partition or environment.get("CONSUL_PARTITION", ""),
            consul_namespace=self._namespace(environment),
            consistency=Consistency(self.consul_consistency),
            service_filter=self.consul_service_filter,
            service_tag=self.consul_service_tag,
            config_prefix=self.consul_config_prefix.strip("/") if is_first else "",
            mesh=self.consul_mesh and is_first,
            connect=self.consul_connect and is_first,
            intention_default=IntentionDefault(self.consul_intention_default),
            namespace=self.consul_mesh_namespace,
            default_protocol=self.consul_default_protocol or Protocol.AUTO,
            service_port=self.consul_service_port,
            address_tag=self.consul_address_tag,
            warning=WarningRule(self.consul_warning),
            critical=CriticalRule(self.consul_critical),
            max_queries=max_queries,
            timing=attrs.evolve(ConsulTiming(), wait_seconds=self.consul_wait, hold_seconds=self.consul_hold),
        )
