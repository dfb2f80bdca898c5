"""Fields of objects with their places. Objects are read on Trio's thread, places in a thread: that reads files."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from mesh_pilot.inspection.places import field_place
from mesh_pilot.mesh.virtual_services.origins import FieldOfObject
from mesh_pilot.model.config import ConfigKey, Origin
from mesh_pilot.model.service import Service
from mesh_pilot.world import View


@attrs.frozen
class Decider:
    """An object that decides a step, and where it was read."""

    object: str
    field: str = ""
    origin: Origin | None = None
    key: ConfigKey | None = None
    text: str = ""
    """The way in which it decides, in words; may be empty."""

    def as_json(self) -> dict[str, str]:
        """With the place of the field; reads its file."""
        place = ""
        if self.origin is not None:
            place = str(self.origin)
            if self.key is not None and self.field:
                place = str(field_place(self.origin, self.key, self.field))
        return {"object": self.object, "field": self.field, "place": place, "text": self.text}


def decider(view: View, field: FieldOfObject, text: str = "") -> Decider:
    """The decider of a field."""
    config = view.config(field.key)
    origin = config.origin if config is not None else None
    return Decider(str(field.key), field.path, origin, field.key, text)


def deciders(view: View, keys: Iterable[ConfigKey], path: str = "", text: str = "") -> list[Decider]:
    """The deciders of objects."""
    return [decider(view, FieldOfObject(key, path), text) for key in keys]


def service_decider(view: View, service: Service, text: str = "") -> Decider:
    """The object that a service was made from, or its registry."""
    if service.config is not None:
        return decider(view, FieldOfObject(service.config), text)
    return Decider(f"service {service.host}", "", Origin(service.registry), None, text)
