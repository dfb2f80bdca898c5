"""Fields of objects with their places. Objects are read on Trio's thread, places in a thread: that reads files."""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.explain.inspection.places import field_place
from mesh_pilot.explain.inspection.why.answer import DecidedBy
from mesh_pilot.mesh.routing.origins import FieldOfObject
from mesh_pilot.model.config import Config, ConfigKey, Origin
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

    def placed(self) -> DecidedBy:
        """With the place of the field; reads its file."""
        place = ""
        if self.origin is not None:
            place = str(self.origin)
            if self.key is not None and self.field:
                place = str(field_place(self.origin, self.key, self.field))
        return DecidedBy(self.object, self.field, place, self.text)


def decider(view: View, field: FieldOfObject, text: str = "") -> Decider:
    """The decider of a field."""
    config = view.config(field.key)
    if config is not None and config.made_from:
        field = _written_field(config, field.path)
        config = view.config(field.key) or config
    origin = config.origin if config is not None else None
    return Decider(str(field.key), field.path, origin, field.key, text)


def _written_field(config: Config, path: str) -> FieldOfObject:
    """The field that users wrote, for one of an object that is made of theirs: a rule of a route, or a listener."""
    first, spec = config.made_from[0], config.spec
    if isinstance(spec, api.Gateway):
        return FieldOfObject(first)
    index = re.match(r"spec\.(http|tls|tcp)\[(\d+)\]", path)
    rules = getattr(spec, index[1], ()) if index is not None else ()
    if index is None or int(index[2]) >= len(rules):
        return FieldOfObject(first)
    source, _, number = getattr(rules[int(index[2])], "name", "").rpartition(".")
    found = next((key for key in config.made_from if source == f"{key.namespace}.{key.name}"), None)
    return FieldOfObject(found, f"spec.rules[{number}]") if found is not None else FieldOfObject(first)


def deciders(view: View, keys: Iterable[ConfigKey], path: str = "", text: str = "") -> list[Decider]:
    """The deciders of objects."""
    return [decider(view, FieldOfObject(key, path), text) for key in keys]


def service_decider(view: View, service: Service, text: str = "") -> Decider:
    """The object that a service was made from, or its registry."""
    if service.config is not None:
        return decider(view, FieldOfObject(service.config), text)
    return Decider(f"service {service.host}", "", Origin(service.registry), None, text)
