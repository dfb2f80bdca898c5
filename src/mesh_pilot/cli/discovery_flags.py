"""The flags of ``mesh-pilot discovery`` of which several make one setting, and the settings that they come to.

A flag that is a setting alone is declared where that setting is used: see ``app.settings`` and the classes that it
names. Here are the rest: those where one says whether the others count (``--leader-election``), where files belong
together (``--tls-cert`` and ``--tls-key``), or where another part has to be asked (the first agent of Consul).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
import click

from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.consul_agent import CaStoreFlags
from mesh_pilot.cli.options import duration
from mesh_pilot.cli.registries import REGISTRIES, RegistryOrder
from mesh_pilot.cli.registries.consul import ConsulFlags
from mesh_pilot.cli.rollout_types import share, shares
from mesh_pilot.cli.state_folder import default_folder
from mesh_pilot.identity.signers.vault.settings import VaultSettings
from mesh_pilot.model.flags import FlagKind, flag, group
from mesh_pilot.model.log_levels import LogLevels, parse_levels
from mesh_pilot.safety.state.settings import HistoryBounds

if TYPE_CHECKING:
    from mesh_pilot.kubernetes.apiserver import Access
    from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
    from mesh_pilot.kubernetes.webhooks.injection.configuration import InjectionSettings
    from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings
    from mesh_pilot.model.events import RolloutPlan
    from mesh_pilot.net.rpc import CertificateFiles, Limits
    from mesh_pilot.ops.access.settings import AccessSettings
    from mesh_pilot.replicas.election.base import ElectionSettings
    from mesh_pilot.safety.state.settings import StateSettings
    from mesh_pilot.sources.base.contract import Registry

Environment = Mapping[str, str]

_mcp = partial(flag, section="Servers of configuration (MCP)")
_access = partial(flag, section="Who may use the web port and the API")
_certificates = partial(flag, section="Certificates")
_tokens = partial(flag, section="Tokens of callers")
_state = partial(flag, section="What outlives a restart")
_election = partial(flag, section="Replicas")
_rollout = partial(flag, section="Changes by steps")
_connections = partial(flag, section="Connections to the gRPC ports")
_webhooks = partial(flag, section="Webhooks of an API server")
_logs = partial(flag, section="Logs and traces")


def certificate_files(certificate: Path | None, key: Path | None, trusted: Path | None) -> CertificateFiles | None:
    """The files of one side of TLS; None where none is named."""
    from mesh_pilot.net.rpc.tls import CertificateFiles

    if not (certificate or key or trusted):
        return None
    return CertificateFiles(certificate=certificate, key=key, trusted=trusted)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class McpTlsFlags:
    """TLS to servers of configuration."""

    ca: Path | None = _mcp("--mcp-tls-ca", help="PEM file of the CA of those servers: connects with TLS.")
    certificate: Path | None = _mcp("--mcp-tls-cert", help="PEM file of our certificate there, for mutual TLS.")
    key: Path | None = _mcp("--mcp-tls-key", help="PEM file of its key.")

    def files(self) -> CertificateFiles | None:
        found = certificate_files(self.certificate, self.key, self.ca)
        if found and (not self.ca or bool(self.certificate) != bool(self.key)):
            raise click.UsageError(
                "TLS to servers of configuration needs --mcp-tls-ca, and for a certificate of ours "
                "both of --mcp-tls-cert and --mcp-tls-key"
            )
        return found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TlsFlags:
    """The certificate of the secure gRPC port."""

    certificate: Path | None = _certificates(
        "--tls-cert", common=True, help="PEM file of the server's certificate.  [default: the CA signs one]"
    )
    key: Path | None = _certificates("--tls-key", help="PEM file of its key.")
    ca: Path | None = _certificates("--tls-ca", help="PEM file of a CA of proxies, besides our own.")

    def files(self) -> CertificateFiles | None:
        if bool(self.certificate) != bool(self.key):
            raise click.UsageError("a server's certificate needs both of --tls-cert and --tls-key")
        return certificate_files(self.certificate, self.key, self.ca)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AccessFlags:
    """Access to the web port and the API."""

    token_file: Path | None = _access(
        "--api-token-file",
        common=True,
        help="File with a line ROLE TOKEN NAME for each caller (docs/api.md); may change.",
        doc="File with a line `ROLE TOKEN NAME` for each caller, see [access](operating.md#access); may change.",
    )
    certificate: Path | None = _access(
        "--api-tls-cert", help="PEM file of the certificate of --http-addr: serves HTTPS there."
    )
    key: Path | None = _access("--api-tls-key", help="PEM file of its key.")
    client_ca: Path | None = _access(
        "--api-client-ca", help="PEM file of a CA of clients, which --api-token-file gives roles."
    )

    def settings(self) -> AccessSettings:
        if bool(self.certificate) != bool(self.key):
            raise click.UsageError("a certificate for --http-addr needs both of --api-tls-cert and --api-tls-key")
        if self.client_ca and not self.certificate:
            raise click.UsageError("--api-client-ca needs --api-tls-cert and --api-tls-key: certificates come over TLS")
        if self.client_ca and not self.token_file:
            raise click.UsageError("--api-client-ca needs --api-token-file, with lines such as: view certificate NAME")
        from mesh_pilot.ops.access.settings import AccessSettings

        return AccessSettings(
            token_file=self.token_file, tls=certificate_files(self.certificate, self.key, self.client_ca)
        )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ForeignTokenFlags:
    """Tokens that others made, by which callers say who they are."""

    jwt_rules: Path | None = _tokens(
        "--jwt-rules",
        help="YAML or JSON file of issuers whose JSON Web Tokens are believed.",
        doc="YAML or JSON file of issuers whose [JSON Web Tokens](authentication.md#json-web-tokens) are believed.",
    )
    kubernetes: bool = _tokens(
        "--accept-kubernetes-tokens",
        default=False,
        help="Believe tokens of service accounts; the API server reviews them.",
        doc="Believe tokens of [service accounts](authentication.md#kubernetes); the API server reviews them.",
    )
    kubeconfig: Path | None = _tokens(
        "--kubernetes-kubeconfig",
        help="How to reach it.  [default: as a pod, or as kubectl does]",
        doc="How to reach that API server, which holds the Lease of `--leader-election` as well.",
    )
    audiences: tuple[str, ...] = _tokens(
        "--kubernetes-token-audience",
        default=("istio-ca",),
        repeats=True,
        help="Whom those tokens must be for; may be repeated.",
    )
    consul: bool = _tokens(
        "--accept-consul-tokens",
        default=False,
        help="Believe ACL tokens with a service identity; our agent is asked about them.",
        doc="Believe [ACL tokens](authentication.md#consul) with a service identity; our agent is asked about them.",
    )
    trust_namespaces: bool = _tokens(
        "--trust-consul-namespaces",
        default=False,
        help="Their namespace is that of the service's metadata: whoever may register a service chooses it.",
    )

    def settings(self, registries: tuple[Registry, ...], *, needs_kubeconfig: bool) -> ForeignTokenSettings:
        """``needs_kubeconfig``: something else reads the kubeconfig. Raises UsageError."""
        from mesh_pilot.consul.identity.authenticator import ConsulTokenSettings
        from mesh_pilot.consul.source import ConsulRegistry
        from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
        from mesh_pilot.kubernetes.identity.token_review import KubernetesTokenSettings

        datacenters = [r.datacenters[0] for r in registries if isinstance(r, ConsulRegistry)]
        if self.consul and not datacenters:
            raise click.UsageError("--accept-consul-tokens needs an agent to ask: --consul-server-url")
        if self.trust_namespaces and not self.consul:
            raise click.UsageError("--trust-consul-namespaces is about the tokens of --accept-consul-tokens")
        if self.kubeconfig and not self.kubernetes and not needs_kubeconfig:
            raise click.UsageError(
                "--kubernetes-kubeconfig needs --accept-kubernetes-tokens or --leader-election kubernetes"
            )
        kubernetes = KubernetesTokenSettings(kubeconfig=self.kubeconfig, audiences=self.audiences)
        return ForeignTokenSettings(
            jwt_rules=self.jwt_rules,
            kubernetes=kubernetes if self.kubernetes else None,
            consul=ConsulTokenSettings(datacenter=datacenters[0], trust_namespaces=self.trust_namespaces)
            if self.consul
            else None,
        )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StateFlags:
    """The state that outlives a restart."""

    folder: Path | None = _state(
        "--state-dir",
        common=True,
        help="Folder of what outlives a restart (docs/state.md).  [default: the system's, such as /var/lib/mesh-pilot]",
        doc="Folder of [what outlives a restart](state.md). The default is `$STATE_DIRECTORY` in a systemd unit, else"
        " `/var/lib/mesh-pilot` for root and `~/.local/state/mesh-pilot` for others.",
    )
    is_off: bool = _state(
        "--no-state",
        default=False,
        common=True,
        help="Forget everything at the end, and find nothing at the start.",
    )
    max_age: tuple[str, ...] = _state(
        "--state-max-age",
        default=(),
        repeats=True,
        metavar="[SOURCE=]DURATION",
        help="Do not use older pictures of sources; repeatable.  [default: any age]",
        doc="Do not use older pictures of sources, such as `24h`, or of one source, `consul=1h`; repeatable.",
    )
    key_file: Path | None = _state(
        "--state-key-file",
        help="File with the key that private keys are kept encrypted with.  [default: not kept]",
    )
    history: HistoryBounds = group(HistoryBounds)

    def settings(self, environment: Environment, rank: Mapping[str, int]) -> StateSettings | None:
        """None: nothing is kept. ``rank``: how near to the command line a parameter was given. Raises UsageError."""
        from mesh_pilot.safety.state.settings import StateSettings

        if self.is_off and self.folder is not None and rank["no_state"] == rank["state_dir"] != VARIABLE:
            raise click.UsageError("--state-dir and --no-state exclude each other")
        # Of the two the one nearer to the command line counts. As variables, which a unit may set for all its
        # processes, they exclude each other silently: the folder is a safer guess than to forget everything.
        if self.is_off and (self.folder is None or rank["no_state"] > rank["state_dir"]):
            return None
        by_source = {}
        for text in self.max_age:
            source, _, age = text.rpartition("=")
            by_source[source] = duration.read(age)
        overall = {"max_age": by_source.pop("")} if "" in by_source else {}
        return StateSettings(
            folder=(self.folder or default_folder(environment)).absolute(),
            key_file=self.key_file,
            max_ages=by_source,
            history=self.history,
            **overall,
        )


FLAG, VARIABLE, FILE, NOBODY = 3, 2, 1, 0
"""Where a value comes from, by rank."""

NONE, CONSUL, KUBERNETES = "none", "consul", "kubernetes"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ElectionFlags:
    """The election of a leader among replicas."""

    kind: str = _election(
        "--leader-election",
        kind=(NONE, CONSUL, KUBERNETES),
        default=NONE,
        common=True,
        help="How replicas agree on the one that does what must be done once (docs/replicas.md).",
        doc="How [replicas](replicas.md#leader-election) agree on the one that does what must be done once: at the"
        " first `--consul-server-url`, or in Kubernetes.",
    )
    key: str = _election(
        "--leader-election-key",
        default="",
        help="Entry of Consul's KV store, or NAMESPACE/NAME of a Lease."
        "  [default: mesh-pilot/leader; a Lease mesh-pilot-leader in --namespace]",
    )
    ttl_seconds: float = _election(
        "--leader-election-ttl",
        kind=FlagKind.DURATION,
        default=15.0,
        help="A leader that is silent for so long leads no more.",
        doc="A leader that is silent for this time leads no more; from 1 s to 1 minute, in Consul from 10 s unless its"
        " servers allow less.",
    )

    def settings(
        self, consul: ConsulFlags, kubeconfig: Path | None, namespace: str, environment: Environment
    ) -> ElectionSettings | None:
        """None without an election. Raises UsageError."""
        key = self.key.strip("/")
        if self.kind == NONE:
            if key:
                raise click.UsageError("--leader-election-key needs --leader-election consul or kubernetes")
            return None
        from mesh_pilot.consul.election.lock import ConsulElectionSettings
        from mesh_pilot.kubernetes.election.lease import KubernetesElectionSettings
        from mesh_pilot.kubernetes.election.lease_record import LONGEST_SECONDS
        from mesh_pilot.replicas.election.elections import SHORTEST_SECONDS

        ttl_seconds = self.ttl_seconds
        if not SHORTEST_SECONDS <= ttl_seconds <= LONGEST_SECONDS:
            raise click.UsageError(f"--leader-election-ttl is between {SHORTEST_SECONDS:g}s and {LONGEST_SECONDS:g}s")
        if self.kind == CONSUL:
            agent, datacenter = consul.first(environment, "--leader-election consul")
            named = {"key": key} if key else {}
            return ConsulElectionSettings(agent=agent, datacenter=datacenter, ttl_seconds=ttl_seconds, **named)
        lease_namespace, slash, name = key.partition("/")
        if key and (not slash or not lease_namespace or not name or "/" in name):
            raise click.UsageError(f"--leader-election-key: {key!r} is not NAMESPACE/NAME of a Lease")
        lease = {"namespace": lease_namespace, "name": name} if key else {"namespace": namespace}
        return KubernetesElectionSettings(kubeconfig=kubeconfig, ttl_seconds=ttl_seconds, **lease)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RolloutFlags:
    """How every change is rolled out."""

    canary: float | None = _rollout(
        "--rollout-canary",
        kind=share,
        metavar="PERCENT",
        help="Every change of configuration goes to this share of the proxies first (docs/rollout.md).  [default: off]",
    )
    steps: tuple[float, ...] | None = _rollout(
        "--rollout-steps",
        kind=shares,
        adds_up=True,
        metavar="PERCENT,...",
        help="The shares after that.  [default: 25,50,100]",
    )
    interval: float = _rollout(
        "--rollout-interval", kind=FlagKind.DURATION, default=120.0, help="The time that a step takes at least."
    )

    def plan(self, workers: int) -> RolloutPlan | None:
        """The plan for every change; None: there is none. Raises UsageError."""
        if self.canary is None:
            if self.steps:
                raise click.UsageError("--rollout-steps needs --rollout-canary")
            return None
        if workers > 1:
            raise click.UsageError("--rollout-canary does not work with --workers: leave one of them out")
        from mesh_pilot.safety.rollout.progress import RolloutError, plan_of

        try:
            return plan_of(canary=self.canary, steps=self.steps or (), interval=self.interval)
        except RolloutError as error:
            raise click.UsageError(f"--rollout-steps: {error}") from None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConnectionFlags:
    """Connections to the gRPC ports: how many, and how long one lasts."""

    max_concurrent_streams: int = _connections(
        "--max-concurrent-streams",
        default=100,
        least=1,
        help="Streams on one connection to a gRPC port; an Envoy needs one, a proxy in front many.",
        doc="Streams on one connection to a gRPC port; an Envoy needs one, a proxy in front many, see"
        " [operating](operating.md#hostile-and-broken-peers).",
    )
    max_connections: int = _connections(
        "--max-connections",
        default=0,
        least=0,
        help="Connections to the gRPC ports, never more than open files allow. Stalled ones give way first, then the"
        " newest of whoever has more than half.",
        doc="Connections to the gRPC ports, never more than five eighths of the process' limit on open files, which is"
        " also what 0 means; see [who gives way](operating.md#who-gives-way-at-a-limit).",
    )
    max_handshakes: int = _connections(
        "--max-handshakes",
        default=1000,
        least=0,
        help="TLS handshakes at the same time; more wait.",
        doc="TLS handshakes at the same time; more wait, in order of arrival, and take the places of silent ones. 0: no"
        " limit.",
    )
    max_connection_age: float = _connections(
        "--max-connection-age",
        kind=FlagKind.DURATION,
        default=0.0,
        help="Send clients elsewhere after so long, give or take a tenth: replicas even out (docs/replicas.md).",
        doc="Send clients elsewhere after this time, give or take a tenth:"
        " [replicas even out](replicas.md#connection-age). 0: never.",
    )
    max_connection_age_grace: float = _connections(
        "--max-connection-age-grace",
        kind=FlagKind.DURATION,
        default=10.0,
        help="How long the streams of such a connection may take to end.",
    )

    def limits(self, requests_per_second: float) -> Limits:
        """``requests_per_second`` are the xDS streams that may begin (0: any number). Each may need a connection of its
        own, so at least as many connections and calls are admitted."""
        from mesh_pilot.net.rpc import SERVER_LIMITS

        return attrs.evolve(
            SERVER_LIMITS,
            connection_rate=requests_per_second and max(SERVER_LIMITS.connection_rate, requests_per_second),
            stream_rate=requests_per_second and max(SERVER_LIMITS.stream_rate, requests_per_second),
            max_concurrent_streams=self.max_concurrent_streams,
            max_connections=self.max_connections or math.inf,
            max_handshakes=self.max_handshakes or math.inf,
            max_connection_age_seconds=self.max_connection_age or math.inf,
            max_connection_age_grace_seconds=self.max_connection_age_grace,
        )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class InjectionFlags:
    """Injected sidecars."""

    template: Path | None = _webhooks(
        "--injection-template",
        help="YAML file with templates, selectors and values of injected sidecars.",
        doc="YAML file with templates, selectors and values of injected sidecars; read again when it changes.",
    )
    image: str = _webhooks(
        "--injection-image", default="", help="Image with mesh-pilot and Envoy, for injected sidecars."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WebhookFlags:
    """The webhooks of an API server."""

    address: str | None = _webhooks(
        "--https-addr",
        kind=FlagKind.ADDRESS,
        common=True,
        help="Webhooks of an API server: validation and injection, as :15017.  [default: off]",
        doc="[Webhooks of an API server](kubernetes-injection.md): validation and injection, as `:15017`.",
    )
    dns_names: tuple[str, ...] = _webhooks(
        "--webhook-dns-names",
        kind=FlagKind.WORDS,
        default=(),
        adds_up=True,
        metavar="NAME,...",
        help="DNS names in their certificate.  [default: the Services istiod and mesh-pilot]",
    )
    injection: InjectionFlags = group(InjectionFlags)

    def is_on(self) -> bool:
        """Raises UsageError for a flag that has no effect without ``--https-addr``."""
        for name, value in (
            ("--webhook-dns-names", self.dns_names),
            ("--injection-template", self.injection.template),
            ("--injection-image", self.injection.image),
        ):
            if value and not self.address:
                raise click.UsageError(f"{name} needs --https-addr, such as :15017")
        return bool(self.address)

    def settings(
        self, mesh: Settings, cluster_id: str, access: Access | None, environment: Environment
    ) -> WebhookSettings:
        """``access``: the API server whose webhook configurations are ours."""
        from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings

        revision = mesh.revision or environment.get("REVISION", "")
        return WebhookSettings(
            address=self.address or "",
            dns_names=self.dns_names,
            injection=injection_settings(self.injection.image, mesh.namespace, revision, cluster_id, mesh.domain),
            injection_file=self.injection.template,
            revision=revision,
            access=access,
        )


def injection_settings(
    image: str, namespace: str, revision: str, cluster: str = "", domain: str = "cluster.local"
) -> InjectionSettings:
    """The settings of injection that flags give."""
    from mesh_pilot.kubernetes.webhooks.injection.configuration import DEFAULT_VALUES, InjectionSettings, merged_values

    given = {
        "istioNamespace": namespace,
        "multiCluster": {"clusterName": cluster},
        "proxy": {"image": image, "clusterDomain": domain},
    }
    values = merged_values(DEFAULT_VALUES, {"global": given, "revision": revision}, "values")
    return InjectionSettings(revision=revision, values=values)


def workers(text: str) -> int:
    """A number of processes, or ``auto``. Raises ValueError."""
    if text in ("auto", "0"):
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not (text.isascii() and text.isdigit() and len(text) < 4):
        raise ValueError(f"{text!r} is neither a number nor auto")
    return int(text)


def levels(text: str) -> LogLevels:
    """``level`` or ``scope:level,...``. Raises ValueError."""
    return parse_levels(text)


def otel_endpoint(text: str) -> str:
    """The URL of an OTLP receiver. Raises ValueError."""
    if not text.startswith(("http://", "https://")) or not urlsplit(text).hostname:
        raise ValueError(f"{text!r} is no URL such as http://localhost:4318")
    return text


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProcessFlags:
    """The processes, and what they write."""

    workers: int = flag(
        "--workers",
        section="Processes",
        kind=workers,
        default=1,
        text="1",
        common=True,
        help="Processes that serve proxies at the same ports; auto: one a core (docs/large-meshes.md).",
        doc="Processes that serve proxies at the same ports; `auto` or `0`: [one a core](large-meshes.md#every-core).",
    )
    log_level: LogLevels = _logs(
        "--log-level",
        kind=levels,
        default=LogLevels(),
        text="info",
        adds_up=True,
        common=True,
        reload=True,
        help="level, or scope:level,... (see docs/operating.md).",
        doc="`level`, or `scope:level,...`, see [operating](operating.md).",
    )
    log_format: str = _logs(
        "--log-format",
        kind=("text", "json"),
        default="text",
        common=True,
        help="text (key=value in a pipe) or json.",
        doc="`text` (readable on a terminal, `key=value` in a pipe), or `json`, with nothing on standard output.",
    )
    traces: str | None = _logs(
        "--otel-traces",
        kind=otel_endpoint,
        metavar="URL",
        help="OTLP receiver over HTTP, http://host:4318, of traces of changes (docs/metrics.md).",
        doc="OTLP receiver over HTTP, `http://host:4318`, of [traces of changes](metrics.md#traces-of-changes).",
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FileFlags:
    """The settings file."""

    config_file: Path | None = flag(
        "--config-file",
        section="The settings file",
        common=True,
        help="YAML file with settings: flags without dashes (docs/configuration.md).",
        doc="YAML file with these settings, see [the settings file](#the-settings-file).",
    )
    print_config: bool = flag(
        "--print-config",
        section="The settings file",
        default=False,
        common=True,
        help="Print the settings file that all that is given means, and exit.",
        doc="Print [the settings file](#the-settings-file) that all that is given means, without secrets, and exit.",
    )


CLASSES: tuple[type[Any], ...] = (
    FileFlags,
    Settings,
    McpTlsFlags,
    RegistryOrder,
    *(registry.flags for registry in REGISTRIES),
    ConnectionFlags,
    TlsFlags,
    CaStoreFlags,
    AccessFlags,
    WebhookFlags,
    ForeignTokenFlags,
    VaultSettings,
    StateFlags,
    ElectionFlags,
    RolloutFlags,
    ProcessFlags,
)
"""All classes of settings, in the order of the help."""
