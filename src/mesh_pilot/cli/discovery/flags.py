"""The flags of ``mesh-pilot discovery`` of which several make one setting, and the settings that they come to.

A flag that is a setting alone is declared where that setting is used: see ``app.settings`` and the classes that it
names. Here are the rest: those where one says whether the others count (``--leader-election``), where files belong
together (``--tls-cert`` and ``--tls-key``), or where another part has to be asked (the first agent of Consul).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.discovery.connection_flags import (
    AccessFlags,
    ConnectionFlags,
    ForeignTokenFlags,
    McpTlsFlags,
    TlsFlags,
    WebhookFlags,
)
from mesh_pilot.cli.discovery.otel_flags import OtelFlags
from mesh_pilot.cli.discovery.registries import REGISTRIES, RegistryOrder
from mesh_pilot.cli.discovery.registries.consul import ConsulFlags
from mesh_pilot.cli.lib.consul_agent import CaStoreFlags
from mesh_pilot.cli.lib.options import duration
from mesh_pilot.cli.lib.rollout_types import condition, share, shares
from mesh_pilot.cli.lib.state_folder import default_folder
from mesh_pilot.model.flags import FlagKind, flag, group
from mesh_pilot.safety.state.settings import HistoryBounds

if TYPE_CHECKING:
    from mesh_pilot.model.events import RolloutPlan
    from mesh_pilot.model.log_levels import LogLevels
    from mesh_pilot.replicas.election.base import ElectionSettings
    from mesh_pilot.safety.state.settings import StateSettings

Environment = Mapping[str, str]

_state = partial(flag, section="What outlives a restart")
_election = partial(flag, section="Replicas")
_rollout = partial(flag, section="Changes by steps")
_logs = partial(flag, section="Logs")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StateFlags:
    """The state that outlives a restart."""

    folder: Path | None = _state(
        "--state-dir",
        common=True,
        help="Folder of what outlives a restart (docs/state.md).  [default: the system's, such as /var/lib/mesh-pilot]",
        doc="Folder of [what outlives a restart](state.md).",
    )
    is_off: bool = _state(
        "--no-state",
        default=False,
        common=True,
        help="Keep nothing, and find nothing at the start.",
    )
    max_age: tuple[str, ...] = _state(
        "--state-max-age",
        default=(),
        repeats=True,
        metavar="[SOURCE=]DURATION",
        help="Do not use older pictures of sources; repeatable.  [default: any age]",
        doc="Do not use older pictures of sources, or of one: `24h`, `consul=1h`; repeatable.",
    )
    key_file: Path | None = _state(
        "--state-key-file",
        help="File with the key that encrypts private keys there.  [default: not kept]",
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
        help="How replicas agree on a leader (docs/replicas.md).",
        doc="How [replicas](replicas.md#leader-election) agree on a leader: at the first "
        "`--consul-server-url`, or in Kubernetes.",
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
        help="A leader loses its lease after this long without renewal.",
        doc="A leader that is silent for this time leads no more: 1 s to 1 minute, in Consul 10 s at least.",
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
        "--rollout-interval", kind=FlagKind.DURATION, default=120.0, help="Least time of a step."
    )

    judged_by: str = _rollout(
        "--rollout-while",
        kind=condition,
        metavar="CONDITION",
        default="not worse",
        text="not worse",
        help="Continue while the first proxies' traffic is: not worse than the others', errors < 1%, both "
        "joined by and; acks: not judged.",
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
            return plan_of(canary=self.canary, steps=self.steps or (), interval=self.interval, judged_by=self.judged_by)
        except RolloutError as error:
            raise click.UsageError(f"--rollout-steps: {error}") from None


def workers(text: str) -> int:
    """A number of processes, or ``auto``. Raises ValueError."""
    if text in ("auto", "0"):
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not (text.isascii() and text.isdigit() and len(text) < 4):
        raise ValueError(f"{text!r} is neither a number nor auto")
    return int(text)


def levels(text: str) -> LogLevels:
    """``level`` or ``scope:level,...``. Raises ValueError."""
    from mesh_pilot.model.log_levels import parse_levels

    return parse_levels(text)


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
        doc="Processes that serve proxies at the same ports; `auto`, `0`: [one a core](large-meshes.md#every-core).",
    )
    log_level: LogLevels = _logs(
        "--log-level",
        kind=levels,
        text="info",
        adds_up=True,
        common=True,
        reload=True,
        help="level, or scope:level,... (see docs/operating.md).",
        doc="`level`, or `scope:level,...` ([scopes](operating.md#logs)).",
    )
    log_format: str = _logs(
        "--log-format",
        kind=("text", "json"),
        default="text",
        common=True,
        help="text (key=value in a pipe) or json.",
        doc="`text` (`key=value` in a pipe), or `json`, with nothing on standard output.",
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FileFlags:
    """The settings file."""

    config_file: Path | None = flag(
        "--config-file",
        section="The settings file",
        common=True,
        help="YAML file with settings: flags without dashes (docs/configuration.md).",
        doc="YAML file with [these settings](#the-settings-file).",
    )
    print_config: bool = flag(
        "--print-config",
        section="The settings file",
        default=False,
        common=True,
        help="Print all settings as such a file, without secrets, and exit.",
        doc="Print all settings as [such a file](#the-settings-file), without secrets, and exit.",
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
    StateFlags,
    ElectionFlags,
    RolloutFlags,
    ProcessFlags,
    OtelFlags,
)
"""All classes of settings, in the order of the help."""
