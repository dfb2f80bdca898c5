"""Matches of a service-router as those of a VirtualService, in the form of YAML."""

from __future__ import annotations

from mesh_pilot.consul.mesh.fields import Fields
from mesh_pilot.consul.mesh.values import Spec
from mesh_pilot.istio.rules.regex import quoted

_ANY = ".*"


class MatchError(ValueError):
    """A match that a VirtualService can't say: without it the route would take requests that are not its own."""


def http_match(fields: Fields) -> Spec:
    """The match of a route; empty: every request. Raises MatchError."""
    # A part that a VirtualService cannot say refuses the route (MatchError): leaving the part out would make the route
    # take requests that are for another one.
    match: Spec = {}
    path = _one_of(fields, {"PathExact": "exact", "PathPrefix": "prefix", "PathRegex": "regex"})
    if path and path != {"prefix": "/"}:
        match["uri"] = path
    if fields.flag("CaseInsensitive"):
        if "regex" in path:
            raise MatchError(f"{fields.path}.CaseInsensitive can't be said together with PathRegex")
        match |= {"ignoreUriCase": True} if path else {}
    methods = fields.strings("Methods")
    if methods:
        is_one = len(methods) == 1
        match["method"] = {"exact": methods[0]} if is_one else {"regex": "|".join(map(quoted, methods))}
    for header in fields.parts("Header"):
        _add_header(header, match)
    parameters: Spec = {}
    for parameter in fields.parts("QueryParam"):
        name = parameter.text("Name")
        said = _one_of(parameter, {"Exact": "exact", "Regex": "regex"})
        if not said and not parameter.flag("Present"):
            raise MatchError(f"{parameter.path} says nothing about {name!r}")
        if not name or name in parameters:
            raise MatchError(f"{parameter.path}: {name!r} is matched twice, or has no name")
        parameters[name] = said or {"regex": _ANY}
    if parameters:
        match["queryParams"] = parameters
    return match


def _add_header(header: Fields, match: Spec) -> None:
    name = header.text("Name").lower()
    said = _one_of(header, {"Exact": "exact", "Prefix": "prefix", "Regex": "regex"})
    for field, pattern in (("Suffix", "{}{}"), ("Contains", "{0}{1}{0}")):
        if header.has(field):
            said |= {"regex": pattern.format(_ANY, quoted(header.text(field)))}
    if header.flag("IgnoreCase"):
        raise MatchError(f"{header.path}.IgnoreCase can't be said")
    if len(said) > 1 or (said and header.has("Present")):
        raise MatchError(f"{header.path} says more than one thing about {name!r}")
    if not said and not header.flag("Present"):
        raise MatchError(f"{header.path} says nothing about {name!r}")
    kind = "withoutHeaders" if header.flag("Invert") else "headers"
    by_name = match.setdefault(kind, {})
    if not name or name in by_name:
        raise MatchError(f"{header.path}: {name!r} is matched twice, or has no name")
    by_name[name] = said or {}


def _one_of(fields: Fields, names: dict[str, str]) -> Spec:
    found: Spec = {kind: fields.text(name) for name, kind in names.items() if fields.has(name)}
    if len(found) > 1:
        raise MatchError(f"{fields.path} says more than one of {', '.join(names)}")
    return found
