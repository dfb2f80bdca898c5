"""The scopes of the log, their levels, and the switch by which levels change while the process runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import attrs

SCOPES: Mapping[str, str] = {
    "admin": "orders of operators; logins and refusals at the web port",
    "agent": "mesh-pilot proxy: its start and end, and below it its parts, such as agent.dns and agent.relay",
    "bootstrap": "start, readiness, drain",
    "config": "objects refused, and accepted again",
    "election": "which replica leads, and why no longer",
    "envoy": "translators: resources that could not be generated, and their configs",
    "mcp": "servers of configuration: connected, lost, NACKs sent and received",
    "ops": "the web and metrics ports: internal errors in requests",
    "quarantine": "objects that proxies refuse, from the search to the end",
    "registration": "workloads that register themselves: new, back, gone",
    "rollout": "changes that go to a share of the proxies first",
    "rpc": "gRPC connections: opened, lost, misbehaving peers",
    "security": "certificates: who was refused and why, what was signed, roots and their rotation",
    "sources": "every source, and the supervisor that restarts them",
    "state": "what is kept over restarts",
    "status": "status written to objects in Kubernetes: what the API server refuses",
    "traffic": "reports of traffic: streams refused, and what is remembered of it",
    "upkeep": "parts of a process that failed or ended, and their restarts",
    "webhooks": "admission webhooks: objects refused, sidecars injected, webhook configurations kept",
    "world": "the reducer: revisions, what changed and why, conflicts",
    "xds": "proxies: connected, ACK, NACK, disconnected",
}
"""Every scope, with its content."""

ISTIO_SCOPES: Mapping[str, str] = {
    **dict.fromkeys(("ads", "delta", "fullpush", "grpcgen"), "xds"),
    **dict.fromkeys(("adsc", "deltaadsc"), "mcp"),
    **dict.fromkeys(("analysis", "processing", "validation"), "config"),
    **dict.fromkeys(("authn", "authorization"), "envoy"),
    **dict.fromkeys(("cache", "sds"), "agent.identity"),
    **dict.fromkeys(("ca", "pkica", "pkira", "rootcertrotator", "serverca", "spiffe", "trustBundle"), "security"),
    **dict.fromkeys(("controllers", "controlleruntime", "file", "ip-autoallocate", "klog", "kube"), "sources"),
    **dict.fromkeys(("secretcontroller", "tag-watcher", "wasm"), "sources"),
    **dict.fromkeys(("citadelclient", "healthcheck", "probes"), "agent"),
    **dict.fromkeys(("gateway", "krt", "model", "serviceentry"), "world"),
    **dict.fromkeys(("validationController", "validationServer"), "webhooks"),
    "cli": "bootstrap",
    "dns": "agent.dns",
    "monitoring": "ops",
    "wle": "registration",
    "xdsproxy": "agent.relay",
}
"""Scopes of istiod's and pilot-agent's logs by ours that have the like; `security` and `status` are in both."""

NONE = logging.CRITICAL + 10
"""Above every level."""

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "none": NONE,
}
"""The levels by name."""

NAMES = {number: name for name, number in reversed(LEVELS.items())}
"""The names of the levels."""


@attrs.frozen
class LogLevels:
    """The default level, and the levels of scopes that differ. Numbers of Python's ``logging``."""

    default: int = logging.INFO
    scopes: Mapping[str, int] = attrs.field(factory=dict)

    def of(self, scope: str) -> int:
        """The level of a scope, else of its nearest parent, else the default."""
        while scope:
            if scope in self.scopes:
                return self.scopes[scope]
            scope = scope.rpartition(".")[0]
        return self.default

    @property
    def least(self) -> int:
        """The lowest level of any scope."""
        return min(self.default, *self.scopes.values(), NONE)

    def text(self) -> str:
        """The levels, for ``parse_levels``."""
        return ",".join([NAMES[self.default], *(f"{scope}:{NAMES[level]}" for scope, level in self.scopes.items())])


def parse_levels(text: str, base: LogLevels = LogLevels()) -> LogLevels:
    """Read ``level`` or ``scope:level,...``; the scope ``default`` is all those not named.

    Scopes of Istio count as ours that have the like. Raises ValueError naming the part that is wrong and what would be
    right. What the text does not name is as in ``base``.
    """
    default, scopes = base.default, dict(base.scopes)
    for part in filter(None, (part.strip() for part in text.split(","))):
        scope, colon, name = part.rpartition(":")
        level = LEVELS.get(name.lower())
        if level is None:
            raise ValueError(f"{part!r}: unknown level {name!r} (one of {', '.join(LEVELS)})")
        if not colon or scope in ("default", "all"):
            default = level
        elif (scope := ISTIO_SCOPES.get(scope, scope)).split(".")[0] in SCOPES:
            scopes[scope] = level
        else:
            raise ValueError(f"{part!r}: unknown scope {scope!r} (default, {', '.join(SCOPES)})")
    return LogLevels(default, scopes)


class LogSwitch:
    """The levels in force in this process, and those that it was started with."""

    def __init__(self) -> None:
        self.started_with = self.levels = LogLevels()
        self.least = logging.DEBUG

    def begin(self, levels: LogLevels) -> None:
        """The levels of the start."""
        self.started_with = levels
        self.change(levels)

    def change(self, levels: LogLevels) -> None:
        self.levels = levels
        self.least = levels.least


SWITCH = LogSwitch()
"""That of this process: its log is one, too."""
