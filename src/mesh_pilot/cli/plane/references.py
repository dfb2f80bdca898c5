"""References to what a control plane has, which every command takes alike: objects, services and proxies.

``KIND/NAME``, with the namespace of ``-n``; ``KIND/NAMESPACE/NAME``; ``KIND NAME...``; or as istioctl has it,
``NAME.NAMESPACE``, if nothing else says the namespace and nothing has that whole name. KIND is ``VirtualService``, in
any case and number, the short ``vs``, or the full ``virtualservice.networking.istio.io``; ``service`` (``svc``) and
``proxy`` are kinds, too. A service is named by its host, or by the first part of it where only one service has that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import click

from mesh_pilot.base.suggestions import did_you_mean
from mesh_pilot.cli.plane.client import PlaneClient

SERVICE, PROXY = "service", "proxy"
"""The kinds of things that are not configuration objects."""

NOUNS: Mapping[str, str] = {
    "service": SERVICE, "services": SERVICE, "svc": SERVICE, "proxy": PROXY, "proxies": PROXY,
}  # fmt: skip
"""The same kinds by the words that they are called by."""

DEFAULT_NAMESPACE = "default"
"""The namespace of objects whose reference has none."""

NO_NAMESPACE = "-"
"""The namespace in the API's path of an object that has none."""

NAMED = 10
"""Candidates that are named."""


class Name(NamedTuple):
    """A name of an object, a service or a proxy; the namespace of the latter two is empty if it was not said."""

    kind: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """The path of an object in the API of the config store."""
        from urllib.parse import quote

        return "/config/" + "/".join(quote(part, safe="") for part in self)

    def __str__(self) -> str:
        return "/".join(filter(None, self))


def kind_of(word: str) -> str:
    """The name of the kind that is meant. Raises ClickException."""
    if noun := NOUNS.get(word.lower()):
        return noun
    from mesh_pilot.istio.kinds import KINDS, SHORT_NAMES, kind_named

    known = kind_named(word)
    if known is None:
        names = [*KINDS, *(kind.plural for kind in KINDS.values()), *SHORT_NAMES, *NOUNS]
        hint = did_you_mean(word, names) or ": write VirtualService, virtualservices or vs, or service"
        raise click.ClickException(f"there is no kind {word!r}{hint}")
    return known.name


def is_kind(word: str) -> bool:
    """True for the word of a kind."""
    from mesh_pilot.istio.kinds import kind_named

    return word.lower() in NOUNS or kind_named(word) is not None


def references(plane: PlaneClient, words: Sequence[str], namespace: str | None) -> tuple[str, list[Name]]:
    """The kind of the last word that has one, and what the words name. Raises ClickException."""
    kind, found = "", list[Name]()
    for word in words:
        first, *rest = word.split("/")
        if not rest and not kind:
            kind = kind_of(first)
        elif not rest:
            found.append(_name(plane, kind, namespace, word))
        elif len(rest) > 2 or not all((first, *rest)):
            raise click.UsageError(f"{word!r} is not KIND/NAME or KIND/NAMESPACE/NAME")
        else:
            kind, own = kind_of(first), rest[0] if len(rest) == 2 else namespace
            if namespace not in (None, own):
                raise click.UsageError(f"{word!r} is in namespace {own}, and -n says {namespace}")
            found.append(_name(plane, kind, own, rest[-1]))
    return kind, found


def _name(plane: PlaneClient, kind: str, namespace: str | None, name: str) -> Name:
    if kind in (SERVICE, PROXY):
        return Name(kind, namespace or "", name)
    from mesh_pilot.istio.kinds import KINDS

    if KINDS[kind].cluster_scoped:
        return Name(kind, NO_NAMESPACE, name)
    whole = Name(kind, namespace or DEFAULT_NAMESPACE, name)
    if namespace is None and (dotted := _dotted(name)):
        # Names of objects may have dots: only the control plane knows which is meant.
        rows = plane.items("/objects", kind=kind, q=dotted[0])
        found = {Name(kind, row["namespace"], row["name"]) for row in rows}
        if whole not in found and (parted := Name(kind, dotted[1], dotted[0])) in found:
            return parted
    return whole


def _dotted(name: str) -> tuple[str, str] | None:
    """The name and the namespace in ``NAME.NAMESPACE``."""
    first, _, last = name.rpartition(".")
    return (first, last) if first and last else None


def part_of_a_name(text: str) -> str:
    """A part of an object's name, as it is compared with whole ones: ``vs/shop/reviews`` has its kind in full."""
    first, slash, rest = text.partition("/")
    if not slash or first in NOUNS:
        return text
    from mesh_pilot.istio.kinds import kind_named

    known = kind_named(first)
    return f"{known.name if known is not None else first}/{rest}"


def named(plane: PlaneClient, word: str, namespace: str | None) -> Name:
    """The one thing of this name that the plane has, of whatever kind. Raises ClickException if it is not one."""
    found, like = _called(plane, word, namespace)
    if not found and namespace is None and (dotted := _dotted(word)):
        found, _ = _called(plane, *dotted)
    return _only(word, found, like)


def _called(plane: PlaneClient, word: str, namespace: str | None) -> tuple[list[Name], list[Name]]:
    """All that is called so, and what is like it."""
    found = plane.get("/search", q=word)
    all_ = [Name(SERVICE, space, host) for space, host in found["services"]["items"]]
    all_ += [Name(kind, space or NO_NAMESPACE, name) for kind, space, name in found["objects"]["items"]]
    all_ += [Name(PROXY, name.partition(".")[2], name) for (name,) in found["proxies"]["items"]]
    return [each for each in all_ if _is_called(each, word) and namespace in (None, each.namespace)], all_


def service_named(plane: PlaneClient, asked: Name) -> Name:
    """The service of a host, or of the first part of one. Raises ClickException if that is not one service."""
    meant = _services(plane, asked)
    if not meant and not asked.namespace and (dotted := _dotted(asked.name)):
        meant = _services(plane, Name(SERVICE, dotted[1], dotted[0]))
    if meant:
        return _only(asked.name, meant, meant)
    everything = [Name(SERVICE, row["namespace"], row["host"]) for row in plane.items("/services")]
    here = f" in namespace {asked.namespace}" if asked.namespace else ""
    if elsewhere := [str(each) for each in everything if _is_called(each, asked.name)]:
        raise click.ClickException(f"there is no service {asked.name}{here}; there is {_shown(elsewhere)}")
    return _only(asked.name, [], everything, f"there is no service {asked.name}{here}")


def _services(plane: PlaneClient, asked: Name) -> list[Name]:
    """The services of a host, else those of the first part of one."""
    rows = plane.items("/services", q=asked.name, namespace=asked.namespace or None)
    found = [Name(SERVICE, row["namespace"], row["host"]) for row in rows]
    exact = [each for each in found if each.name == asked.name.lower()]
    return exact or [each for each in found if _is_called(each, asked.name)]


def proxy_named(asked: Name) -> str:
    """The name of a proxy as the API takes it, which knows what a name without namespace means, or refuses it."""
    is_whole = "." in asked.name or "~" in asked.name or ":" in asked.name
    return f"{asked.name}.{asked.namespace}" if asked.namespace and not is_whole else asked.name


def _is_called(each: Name, word: str) -> bool:
    """True for the whole name; of hosts and proxies also for the parts before a dot."""
    name, wanted = each.name.lower(), word.lower()
    return name == wanted or (each.kind in (SERVICE, PROXY) and name.startswith(f"{wanted}."))


def _only(word: str, found: Sequence[Name], like: Iterable[Name], nothing: str = "") -> Name:
    if len(found) == 1:
        return found[0]
    if found:
        raise click.ClickException(f"{word} may be {_shown(map(str, found))}; write one of them")
    by_name = {name: str(each) for each in like for name in (each.name, each.name.partition(".")[0])}
    near = did_you_mean(word, by_name)
    raise click.ClickException(f"{nothing or f'there is nothing called {word}'}{near}")


def _shown(names: Iterable[str]) -> str:
    first, *more = [*names][: NAMED + 1] or [""]
    return ", ".join([first, *more[: NAMED - 1]]) + (", ..." if len(more) == NAMED else "")
