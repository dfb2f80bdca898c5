"""Resources that a proxy holds, each with the objects that this proxy has it from.

Equal resources are one object for all proxies (``engine.snapshots``), and it names the objects of whichever proxy came
first: the inbound clusters of two services look alike, though each is made of another service and rule. The sets of a
proxy know better, since each derives its resources from its own queries. They are asked when somebody wants to know:
a record of origins for each snapshot would cost every push for what one question in a day needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mesh_pilot.model.resource import Resource


@attrs.frozen(eq=False)
class Explained(Mapping[str, Resource]):
    """Resources that a proxy holds, those that its own sets make in place of equal ones. Never changed."""

    held: Mapping[str, Resource]
    made: tuple[Mapping[str, Resource], ...]
    """The resources of its sets, which have no name in common. Those of another version than the held one do not
    explain it."""

    def __getitem__(self, name: str) -> Resource:
        resource = self.held[name]
        own = next((made[name] for made in self.made if name in made), resource)
        return own if own.version == resource.version else resource

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)
