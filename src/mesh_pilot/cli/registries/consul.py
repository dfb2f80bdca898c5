"""The flags of ``mesh-pilot discovery`` about Consul, and the environment variables of Consul's own tools."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.options import FlagType, duration

if TYPE_CHECKING:
    from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
    from mesh_pilot.model.service import Protocol

_FILE = click.Path(path_type=Path)
_FEW_QUERIES = 16
_PORT = click.IntRange(0, 65535)


@FlagType
def protocol(text: str) -> Protocol:
    """A protocol as Istio spells it, in any case; ``auto`` is found out by looking at the bytes."""
    from mesh_pilot.model.service import Protocol

    found = Protocol.parse(text)
    if found is Protocol.AUTO and text.lower() != "auto":
        raise click.BadParameter(f"{text!r} is no protocol: http, http2, grpc, tcp, tls, ..., or auto")
    return found


@FlagType
def hold(text: str) -> float:
    """A duration, or ``forever``."""
    return math.inf if text == "forever" else duration(text)


_CONSISTENCY = click.Choice(["default", "consistent", "stale"])
_WARNING = click.Choice(["in", "out", "unhealthy"])
_INTENTION_DEFAULT = click.Choice(["auto", "allow", "deny"])
_CRITICAL = click.Choice(["out", "unhealthy"])


FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--consul-server-url",
        {"multiple": True, "help": "A Consul agent: http(s)://host:port, unix:///path; repeatable."},
    ),
    ("--consul-datacenter", {"multiple": True, "help": "Datacenter to read.  [default: the agent's own]"}),
    (
        "--consul-merge-datacenters",
        {"is_flag": True, "help": "Instances of other datacenters also serve the host of the own one."},
    ),
    ("--consul-token", {"default": "", "help": "ACL token; better in a file or the environment."}),
    ("--consul-token-file", {"type": _FILE, "help": "File with the ACL token, read again when it changes."}),
    ("--consul-ca-file", {"type": _FILE, "help": "PEM file of the CA of the agent's certificate."}),
    ("--consul-client-cert", {"type": _FILE, "help": "PEM file of our certificate towards the agent."}),
    ("--consul-client-key", {"type": _FILE, "help": "PEM file of its key."}),
    ("--consul-tls-server-name", {"default": "", "help": "Name in the agent's certificate, if not that of the URL."}),
    ("--consul-consistency", {"type": _CONSISTENCY, "default": "default", "help": "Of reads."}),
    ("--consul-partition", {"default": "", "help": "Partition of Consul Enterprise."}),
    ("--consul-namespace", {"default": "", "help": "Namespace of Consul Enterprise."}),
    ("--consul-service-filter", {"default": "", "help": "Consul filter expression that instances must fulfil."}),
    ("--consul-service-tag", {"default": "", "help": "Tag that services and instances must carry."}),
    ("--consul-domain", {"default": "consul", "help": "Hosts are NAME.service.DOMAIN."}),
    ("--consul-config-prefix", {"default": "", "help": "KV prefix of Istio objects, such as mesh-pilot/config."}),
    (
        "--consul-mesh/--no-consul-mesh",
        {"default": False, "help": "Consul's own config entries and intentions become routes, rules and policies."},
    ),
    (
        "--consul-intention-default",
        {"type": _INTENTION_DEFAULT, "default": "auto", "help": "Without an intention; auto: as Consul says."},
    ),
    ("--consul-mesh-namespace", {"default": "default", "help": "Namespace of services that do not name one."}),
    ("--consul-default-protocol", {"type": protocol, "default": "auto", "help": "Of services that do not say."}),
    (
        "--consul-service-port",
        {"type": _PORT, "default": 0, "help": "Of services that say none; 0: that of instances."},
    ),
    ("--consul-address-tag", {"default": "", "help": "Tagged address to reach instances at, such as wan."}),
    (
        "--consul-short-names/--no-consul-short-names",
        {"default": None, "help": "Bare names are services of Consul.  [default: yes, without Kubernetes]"},
    ),
    ("--consul-warning", {"type": _WARNING, "default": "in", "help": "Instances in state warning."}),
    ("--consul-critical", {"type": _CRITICAL, "default": "out", "help": "Critical and in maintenance."}),
    ("--consul-hold", {"type": hold, "default": "30s", "help": "How long sudden emptiness is doubted; or forever."}),
    ("--consul-wait", {"type": duration, "default": "60s", "help": "How long a blocking query waits."}),
    (
        "--consul-max-queries",
        {"type": click.IntRange(_FEW_QUERIES), "default": 60, "help": "Queries at once, at most; by agent."},
    ),
)
"""Each flag with what click takes of it. All variables begin with ``MESH_PILOT_CONSUL_``."""


def consul_registry(
    flags: Mapping[str, Any], environment: Mapping[str, str], is_named: bool | None = None
) -> ConsulRegistry | None:
    """The datacenters of flags and environment; None if no agent is named, or not ``is_named``. Raises UsageError."""
    datacenters = consul_datacenters(flags, environment) if is_named is not False else ()
    if not datacenters:
        return None
    from mesh_pilot.consul.source import ConsulRegistry

    return ConsulRegistry(datacenters, flags["consul_short_names"])


def consul_datacenters(flags: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[ConsulSettings, ...]:
    """The datacenters to follow, the mesh's own first; empty if no agent is named.

    Consul's own variables count where a flag (or its variable) does not say otherwise. Raises UsageError.
    """
    urls = list(flags["consul_server_url"]) or list(filter(None, [environment.get("CONSUL_HTTP_ADDR", "")]))
    datacenters = list(flags["consul_datacenter"])
    if not urls:
        if datacenters:
            raise click.UsageError("--consul-datacenter needs an agent to ask: --consul-server-url")
        return ()
    if len(urls) > 1 and datacenters and len(datacenters) != len(urls):
        raise click.UsageError(
            f"{len(urls)} --consul-server-url with {len(datacenters)} --consul-datacenter: give one datacenter for "
            "each agent, or none, or one agent for all datacenters"
        )
    pairs = list(zip(urls, datacenters, strict=True)) if len(urls) == len(datacenters) else []
    pairs = pairs or [(url, datacenter) for url in urls for datacenter in datacenters or [""]]
    import attrs

    found = [
        _one(flags, environment, url, datacenter, is_first=rank == 0) for rank, (url, datacenter) in enumerate(pairs)
    ]
    sharing = Counter(url for url, _ in pairs)
    return tuple(
        attrs.evolve(one, max_queries=max(one.max_queries // sharing[one.agent.address], _FEW_QUERIES)) for one in found
    )


def _one(
    flags: Mapping[str, Any], environment: Mapping[str, str], url: str, datacenter: str, *, is_first: bool
) -> ConsulSettings:
    import attrs

    from mesh_pilot.consul.client.settings import ConsulTiming, IntentionDefault
    from mesh_pilot.consul.source import Consistency, ConsulSettings, CriticalRule, WarningRule

    return ConsulSettings(
        agent=consul_agent(flags, environment, url),
        datacenter=datacenter,
        remote=not is_first,
        merged=flags["consul_merge_datacenters"] and not is_first,
        merges_others=flags["consul_merge_datacenters"] and is_first,
        domain=flags["consul_domain"].strip("."),
        partition=flags["consul_partition"] or environment.get("CONSUL_PARTITION", ""),
        consul_namespace=flags["consul_namespace"] or environment.get("CONSUL_NAMESPACE", ""),
        consistency=Consistency(flags["consul_consistency"]),
        service_filter=flags["consul_service_filter"],
        service_tag=flags["consul_service_tag"],
        config_prefix=flags["consul_config_prefix"].strip("/") if is_first else "",
        mesh=flags["consul_mesh"] and is_first,
        intention_default=IntentionDefault(flags["consul_intention_default"]),
        namespace=flags["consul_mesh_namespace"],
        default_protocol=flags["consul_default_protocol"],
        service_port=flags["consul_service_port"],
        address_tag=flags["consul_address_tag"],
        warning=WarningRule(flags["consul_warning"]),
        critical=CriticalRule(flags["consul_critical"]),
        max_queries=flags["consul_max_queries"],
        timing=attrs.evolve(ConsulTiming(), wait_seconds=flags["consul_wait"], hold_seconds=flags["consul_hold"]),
    )


def consul_agent(flags: Mapping[str, Any], environment: Mapping[str, str], url: str) -> Agent:
    """The agent at a URL, with the credentials of the flags, else of Consul's own variables. Raises UsageError."""
    from mesh_pilot.consul.client.settings import ConsulAddressError, Tls
    from mesh_pilot.consul.source import Agent

    def path(flag: str, variable: str) -> Path | None:
        named = flags.get(flag) or environment.get(variable)
        return Path(named) if named else None

    token = flags["consul_token"]
    token_file = flags["consul_token_file"]
    if not token and not token_file:
        token = environment.get("CONSUL_HTTP_TOKEN", "")
        token_file = path("", "CONSUL_HTTP_TOKEN_FILE")
    tls = Tls(
        ca_file=path("consul_ca_file", "CONSUL_CACERT"),
        ca_path=path("", "CONSUL_CAPATH"),
        certificate=path("consul_client_cert", "CONSUL_CLIENT_CERT"),
        key=path("consul_client_key", "CONSUL_CLIENT_KEY"),
        server_name=flags["consul_tls_server_name"] or environment.get("CONSUL_TLS_SERVER_NAME", ""),
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
