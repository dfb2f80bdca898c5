"""One patch of an EnvoyFilter, ready to be applied, and what may be wrong with one."""

from __future__ import annotations

import attrs
from google.protobuf.message import Message

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.model.config import ConfigKey, Severity

ApplyTo = api.EnvoyFilterApplyTo
Context = api.EnvoyFilterPatchContext
FilterClass = api.EnvoyFilterPatchFilterClass
Operation = api.EnvoyFilterPatchOperation

MERGES = frozenset((Operation.MERGE, Operation.MERGE_AND_REPLACE_LIST))
INSERTS = frozenset((Operation.INSERT_BEFORE, Operation.INSERT_AFTER, Operation.INSERT_FIRST))


@attrs.frozen
class Patch:
    """What to change, and how."""

    config: ConfigKey
    """The EnvoyFilter."""
    index: int
    """Its place in ``spec.configPatches``."""
    apply_to: ApplyTo
    operation: Operation
    match: api.EnvoyFilterEnvoyConfigObjectMatch
    value: Message | None
    """The message to add or to merge, never to be changed; None only for REMOVE."""
    filter_class: FilterClass = FilterClass.UNSPECIFIED

    @property
    def message(self) -> Message:
        """The value, where the operation has one."""
        assert self.value is not None
        return self.value

    @property
    def where(self) -> str:
        """Its place, for people: the EnvoyFilter and the path in it."""
        return f"{self.config}: spec.configPatches[{self.index}]"

    @property
    def is_merge(self) -> bool:
        return self.operation in MERGES

    def is_for(self, context: Context) -> bool:
        return self.match.context in (Context.ANY, context)


@attrs.frozen
class PatchProblem:
    """A patch that could not be carried out, wholly or in part. Everything else of the proxy stands."""

    config: ConfigKey
    patch: int
    """Its place in ``spec.configPatches``."""
    reason: str
    resource: str = ""
    """What it was to change (``cluster outbound|80||a``); empty where it is wrong whatever it is applied to."""
    severity: Severity = Severity.ERROR
    """A warning: the patch is applied, but a part of it has no effect."""

    @property
    def path(self) -> str:
        return f"spec.configPatches[{self.patch}]"

    def __str__(self) -> str:
        where = f" on {self.resource}" if self.resource else ""
        return f"{self.config}: {self.path}{where}: {self.reason}"


class PatchError(ValueError):
    """A patch that can't be applied to something, and why."""
