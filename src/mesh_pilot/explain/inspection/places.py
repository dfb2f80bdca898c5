"""Places of fields: the file and line that decides something, for people."""

from __future__ import annotations

from pathlib import Path

import attrs

from mesh_pilot.base.reading import member
from mesh_pilot.istio.kinds import written_kind
from mesh_pilot.istio.reading.yaml import load
from mesh_pilot.model.config import ConfigError, ConfigKey, Origin


def field_place(origin: Origin, key: ConfigKey, path: str) -> Origin:
    """The place of a field of an object: the line of `path`, such as ``spec.http[0].route[1]``, or of the object.

    The file is read again, because objects in force do not keep the lines of their fields. The object's own place is
    the answer for an object that is no longer there, for a registry's key, and for a file that cannot be read.
    """
    if not origin.line:
        return origin
    try:
        text = Path(origin.location).read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return origin
    for document in load(text, origin):
        if isinstance(document, ConfigError) or document.line != origin.line:
            continue
        name = member(document.data, "metadata", "name")
        if (document.data.get("kind"), name) != (written_kind(key.kind), key.name):
            break
        return attrs.evolve(origin, line=document.line_of(path))
    return origin
