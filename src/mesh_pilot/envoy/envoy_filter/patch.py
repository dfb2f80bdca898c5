"""One patch of an EnvoyFilter, ready to be applied, and the problems that it may have."""

from __future__ import annotations

import attrs
from google.protobuf.message import Message

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.model.config import ConfigKey, Severity
from mesh_pilot.model.proxy import NodeType

ApplyTo = api.EnvoyFilterApplyTo
Context = api.EnvoyFilterPatchContext
FilterClass = api.EnvoyFilterPatchFilterClass
Operation = api.EnvoyFilterPatchOperation

MERGES = frozenset((Operation.MERGE, Operation.MERGE_AND_REPLACE_LIST))
INSERTS = frozenset((Operation.INSERT_BEFORE, Operation.INSERT_AFTER, Operation.INSERT_FIRST))


PatchRef = tuple[ConfigKey, int]
"""An EnvoyFilter and the index of one of its patches."""


@attrs.frozen
class Patch:
    """One of ``spec.configPatches``."""

    config: ConfigKey
    """The EnvoyFilter."""
    index: int
    """The index in ``spec.configPatches``."""
    apply_to: ApplyTo
    operation: Operation
    match: api.EnvoyFilterEnvoyConfigObjectMatch
    value: Message | None
    """The message to add or to merge. Shared, never to be changed; None only for REMOVE."""
    filter_class: FilterClass = FilterClass.UNSPECIFIED

    @property
    def message(self) -> Message:
        """The value, for operations that have one."""
        assert self.value is not None
        return self.value

    @property
    def ref(self) -> PatchRef:
        return self.config, self.index

    @property
    def path(self) -> str:
        """The EnvoyFilter and the path in it, for logs."""
        return f"{self.config}: spec.configPatches[{self.index}]"

    @property
    def is_merge(self) -> bool:
        return self.operation in MERGES

    def is_for(self, context: Context) -> bool:
        return self.match.context in (Context.ANY, context)

    def is_for_some(self, of: NodeType) -> bool:
        """True if it is for a context that proxies of a type have."""
        if of is NodeType.ROUTER:
            return self.is_for(Context.GATEWAY)
        return self.is_for(Context.SIDECAR_INBOUND) or self.is_for(Context.SIDECAR_OUTBOUND)


@attrs.frozen
class PatchProblem:
    """A patch that could not be applied, or a part of one. The proxy's other configuration is unaffected."""

    config: ConfigKey
    patch: int
    """The index in ``spec.configPatches``."""
    reason: str
    resource: str = ""
    """The resource to be changed (``cluster outbound|80||a``); empty if the patch is wrong for every resource."""
    severity: Severity = Severity.ERROR
    """A warning: the patch is applied, but a part of it has no effect."""

    @property
    def ref(self) -> PatchRef:
        return self.config, self.patch

    @property
    def path(self) -> str:
        return f"spec.configPatches[{self.patch}]"

    def __str__(self) -> str:
        where = f" on {self.resource}" if self.resource else ""
        return f"{self.config}: {self.path}{where}: {self.reason}"


@attrs.frozen
class PatchMatches:
    """The patches that found an object to change, and what came nearest to a match of others."""

    found: frozenset[PatchRef] = frozenset()
    nearest: tuple[tuple[PatchRef, str], ...] = ()


NO_MATCHES = PatchMatches()


class PatchError(ValueError):
    """A patch cannot be parsed, or not be applied to an object; the text is the reason, for users."""

    def __init__(self, reason: str, instead: Patch | None = None) -> None:
        """``instead`` is a patch that is safer than none."""
        super().__init__(reason)
        self.instead = instead
