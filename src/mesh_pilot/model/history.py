"""Values of the history of revisions: what a revision came to, and where each proxy is."""

from __future__ import annotations

from datetime import datetime

import attrs


@attrs.frozen
class RevisionNack:
    """A refusal of what followed from a revision."""

    at: datetime
    proxy: str
    """Name of the client, ``web-1.shop``."""
    type: str
    """Short, ``CDS``."""
    names: tuple[str, ...]
    """The refused resources; empty when it is unknown which."""
    configs: tuple[str, ...]
    """The objects that those resources were made from."""
    reason: str
    """As the client puts it."""


@attrs.frozen
class RevisionOutcome:
    """The effects of a revision on proxies, so far."""

    revision: int
    proxies: int
    """Streams that were sent something because of it."""
    waiting: int
    """Streams that may still be sent something, or have not answered."""
    bytes: int
    """Bytes sent; of a response that merges several revisions, they count for the newest."""
    acked_seconds: float | None
    """From its publication until the last of the streams, so far, had answered everything; None: none has."""
    nacks: tuple[RevisionNack, ...]
    """The first refusals."""
    nacked: int
    """Refusals in all."""
    is_over: bool
    """Nothing more is counted: every stream has answered or is gone, or too many revisions came since."""


@attrs.frozen
class ProxyRevision:
    """The revision that a connected proxy is at."""

    revision: int | None
    """The last of which it has, and has accepted, everything; None for the latest, 0 for none yet."""
    is_refusing: bool
    """True while it refuses something, and so stays where it was."""


@attrs.frozen
class EdgeOutcome:
    """Failures on an edge before a revision and after it."""

    caller: str
    """The name of a workload,"""
    namespace: str
    """and its namespace."""
    called: str
    """Host and port; empty: all that the revision touched of what it calls. A port of the workload's own application
    is named by its cluster, its policies by ``policies``, and requests that had no route or no cluster by ``listener``
    and the prefix of its statistics."""
    unit: str
    """The unit of the counts: ``requests``, ``attempts``, ``connections``; ``allowed``, whose failures are denials."""
    tries_before: int
    failures_before: int
    tries_after: int
    failures_after: int
    verdict: str
    """``worse``, ``better``, ``same``, or ``too little traffic``."""

    @property
    def more_failures(self) -> float:
        """Failures beyond those that the share of before would have made."""
        share = self.failures_before / self.tries_before if self.tries_before else 0.0
        return self.failures_after - self.tries_after * share


@attrs.frozen
class RevisionTraffic:
    """The traffic on the edges that a revision touched, ten minutes before it and after it."""

    revision: int
    verdict: str
    """``worse`` if an edge got worse; else ``better``, ``same``, or ``too little traffic``."""
    edges: int
    """Edges with traffic that it touched."""
    worse: tuple[EdgeOutcome, ...]
    """The first edges that got worse, the worst one first."""
    worse_edges: int
    """Edges that got worse, in all."""
    tries_before: int
    failures_before: int
    tries_after: int
    failures_after: int
    minutes_before: int
    """The minutes that are compared: fewer than ten if another revision touched the same edges."""
    minutes_after: int
    cut_by: int | None
    """The later revision that touched some of the same edges, and ended the time after this one."""
    is_complete: bool
    """False if some of the counts were lost, or a proxy began to report then."""
