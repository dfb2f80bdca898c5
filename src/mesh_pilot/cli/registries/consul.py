"""The flags of ``mesh-pilot discovery`` about Consul, and the environment variables of Consul's own tools."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from mesh_pilot.cli.options import duration
from mesh_pilot.model.flags import FlagKind, flag

if TYPE_CHECKING:
    from mesh_pilot.app.settings import Settings
    from mesh_pilot.consul.identity.ca_store import ConsulStoreSettings
    from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
    from mesh_pilot.model.service import Protocol

_FEW_QUERIES = 16

_flag = partial(flag, section="Consul")
_certificates = partial(flag, section="Certificates")


def protocol(text: str) -> Protocol:
    """A protocol as Istio spells it, in any case; ``auto`` is found out by looking at the bytes. Raises ValueError."""
    from mesh_pilot.model.service import Protocol

    found = Protocol.parse(text)
    if found is Protocol.AUTO and text.lower() != "auto":
        raise ValueError(f"{text!r} is no protocol: http, http2, grpc, tcp, tls, ..., or auto")
    return found


def hold(text: str) -> float:
    """A duration, or ``forever``."""
    return math.inf if text == "forever" else duration.read(text)


@attrs.frozen(kw_only=True, eq=False)
class ConsulAgentFlags:
    """The agents that are asked. Consul's own variables count where a flag, or its variable, does not say otherwise."""

    consul_server_url: tuple[str, ...] = _flag(
        "--consul-server-url",
        default=(),
        repeats=True,
        common=True,
        help="A Consul agent: http(s)://host:port, unix:///path; repeatable.",
        doc="A [Consul](consul.md) agent: `http://host:8500`, `https://host:8501` or `unix:///path`; repeatable, one"
        " for each datacenter.",
    )
    consul_datacenter: tuple[str, ...] = _flag(
        "--consul-datacenter",
        default=(),
        repeats=True,
        help="Datacenter to read.  [default: the agent's own]",
        doc="Datacenter to read; repeatable, the first is the mesh's own.",
    )
    consul_token: str = _flag(
        "--consul-token",
        default="",
        secret="--consul-token-file",
        help="ACL token; better in a file or the environment.",
    )
    consul_token_file: Path | None = _flag(
        "--consul-token-file", common=True, help="File with the ACL token, read again when it changes."
    )
    consul_ca_file: Path | None = _flag("--consul-ca-file", help="PEM file of the CA of the agent's certificate.")
    consul_client_cert: Path | None = _flag(
        "--consul-client-cert", help="PEM file of our certificate towards the agent."
    )
    consul_client_key: Path | None = _flag("--consul-client-key", help="PEM file of its key.")
    consul_tls_server_name: str = _flag(
        "--consul-tls-server-name", default="", help="Name in the agent's certificate, if not that of the URL."
    )

    def agent(self, url: str, environment: Mapping[str, str]) -> Agent:
        """The agent at a URL. Raises UsageError."""
        from mesh_pilot.consul.client.settings import ConsulAddressError, Tls
        from mesh_pilot.consul.source import Agent

        def path(given: Path | None, variable: str) -> Path | None:
            named = given or environment.get(variable)
            return Path(named) if named else None

        token, token_file = self.consul_token, self.consul_token_file
        if not token and not token_file:
            token = environment.get("CONSUL_HTTP_TOKEN", "")
            token_file = path(None, "CONSUL_HTTP_TOKEN_FILE")
        tls = Tls(
            ca_file=path(self.consul_ca_file, "CONSUL_CACERT"),
            ca_path=path(None, "CONSUL_CAPATH"),
            certificate=path(self.consul_client_cert, "CONSUL_CLIENT_CERT"),
            key=path(self.consul_client_key, "CONSUL_CLIENT_KEY"),
            server_name=self.consul_tls_server_name or environment.get("CONSUL_TLS_SERVER_NAME", ""),
            verify=environment.get("CONSUL_HTTP_SSL_VERIFY", "true").lower() not in ("false", "0"),
        )
        agent = Agent(
            address=url,
            token=token,
            token_file=token_file,
            basic_auth=environment.get("CONSUL_HTTP_AUTH", ""),
            tls=tls,
            use_tls=environment.get("CONSUL_HTTP_SSL", "").lower() in ("true", "1"),
        )
        try:
            agent.base_url  # noqa: B018  it checks the address
        except ConsulAddressError as error:
            raise click.UsageError(f"--consul-server-url: {error}") from None
        return agent

    def agents(self, environment: Mapping[str, str]) -> list[tuple[str, str]]:
        """URLs and datacenters, the mesh's own first; empty if no agent is named. Raises UsageError."""
        urls = list(self.consul_server_url) or list(filter(None, [environment.get("CONSUL_HTTP_ADDR", "")]))
        datacenters = self.consul_datacenter
        if not urls and datacenters:
            raise click.UsageError("--consul-datacenter needs an agent to ask: --consul-server-url")
        if len(urls) == len(datacenters):
            return list(zip(urls, datacenters, strict=True))
        if len(urls) > 1 and datacenters:
            raise click.UsageError(
                f"{len(urls)} --consul-server-url with {len(datacenters)} --consul-datacenter: give one datacenter for "
                "each agent, or none, or one agent for all datacenters"
            )
        return [(url, datacenter) for url in urls for datacenter in datacenters or ("",)]

    def first(self, environment: Mapping[str, str], needed_by: str) -> tuple[Agent, str]:
        """The agent and the datacenter of the mesh's own. Raises UsageError."""
        for url, datacenter in self.agents(environment):
            return self.agent(url, environment), datacenter
        raise click.UsageError(f"{needed_by} needs an agent to ask: --consul-server-url")


@attrs.frozen(kw_only=True, eq=False)
class CaStoreFlags:
    """A CA that replicas share in Consul's KV store."""

    ca_consul_key: str = _certificates(
        "--ca-consul-key",
        default="",
        help="Key of Consul's KV store, at the first agent, that replicas share the CA in.",
        doc="Key of Consul's KV store, at the first agent, that"
        " [replicas share the CA in](certificates.md#a-ca-that-replicas-share-in-consul).",
    )
    ca_consul_token_file: Path | None = _certificates(
        "--ca-consul-token-file", help="File with the ACL token for it.  [default: the agent's]"
    )
    ca_key_encryption_file: Path | None = _certificates(
        "--ca-key-encryption-file", help="File with the key that encrypts the CA there."
    )
    ca_key_plaintext: bool = _certificates(
        "--ca-key-plaintext", default=False, help="Put the CA's PRIVATE KEY there without encryption."
    )

    def settings(self, agent: Agent, datacenter: str) -> ConsulStoreSettings:
        """The store at an agent. Raises UsageError."""
        from mesh_pilot.consul.identity.ca_store import ConsulStoreSettings

        if self.ca_consul_token_file is not None:
            agent = attrs.evolve(agent, token="", token_file=self.ca_consul_token_file)
        settings = ConsulStoreSettings(
            key=self.ca_consul_key,
            agent=agent,
            datacenter=datacenter,
            encryption_file=self.ca_key_encryption_file,
            allow_plaintext=self.ca_key_plaintext,
        )
        if problem := settings.problem():
            raise click.UsageError(f"--ca-consul-key: {problem} (--ca-key-encryption-file)")
        return settings


@attrs.frozen(kw_only=True, eq=False)
class ConsulFlags(ConsulAgentFlags):
    """How services are read there. What of these holds for the first datacenter alone is said below."""

    consul_merge_datacenters: bool = _flag(
        "--consul-merge-datacenters",
        default=False,
        help="Instances of other datacenters also serve the host of the own one.",
        doc="Instances of [other datacenters](consul.md#several-datacenters) also serve the host of the own one.",
    )
    consul_consistency: str = _flag(
        "--consul-consistency", default="default", kind=("default", "consistent", "stale"), help="Of reads."
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
        doc="KV prefix of Istio objects, such as `mesh-pilot/config`; by default none are read.",
    )
    consul_mesh: bool = _flag(
        "--consul-mesh/--no-consul-mesh",
        default=False,
        help="Consul's own config entries and intentions become routes, rules and policies.",
        doc="[Consul's own config entries and intentions](consul-mesh.md) become routes, rules and policies.",
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
        "--consul-default-protocol", text="auto", kind=protocol, help="Of services that do not say."
    )
    consul_service_port: int = _flag(
        "--consul-service-port", default=0, least=0, most=65535, help="Of services that say none; 0: that of instances."
    )
    consul_address_tag: str = _flag(
        "--consul-address-tag", default="", help="Tagged address to reach instances at, such as wan."
    )
    consul_short_names: bool | None = _flag(
        "--consul-short-names/--no-consul-short-names",
        help="Bare names are services of Consul.  [default: yes, without Kubernetes]",
        doc="Short names in Istio objects are services of Consul: `reviews` is `reviews.service.consul`.",
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
        help="How long sudden emptiness is doubted; or forever.",
        doc="The time for which services and instances are kept that Consul suddenly does not have; or `forever`.",
    )
    consul_wait: float = _flag(
        "--consul-wait", default=60.0, kind=FlagKind.DURATION, help="How long a blocking query waits."
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
        sharing = Counter(url for url, _ in pairs)
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
            domain=self.consul_domain.strip("."),
            partition=self.consul_partition or environment.get("CONSUL_PARTITION", ""),
            consul_namespace=self.consul_namespace or environment.get("CONSUL_NAMESPACE", ""),
            consistency=Consistency(self.consul_consistency),
            service_filter=self.consul_service_filter,
            service_tag=self.consul_service_tag,
            config_prefix=self.consul_config_prefix.strip("/") if is_first else "",
            mesh=self.consul_mesh and is_first,
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
