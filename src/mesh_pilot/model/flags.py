"""Settings that are declared once: fields of attrs classes that are flags, variables, keys of a file and rows of docs.

A class of settings says of each field, by `flag`, how users give it. All else is made of that: click's option, the
variable ``MESH_PILOT_...``, the key of the settings file, the table in the docs, completion. Why so:

- The class that a room uses is the declaration, so that a new setting is one field, in the room that reads it. A table
  of flags next to the classes would be a second place, which nothing keeps equal.
- Nothing here knows click, and readers raise ValueError: a room that is used without a command line loads neither.
- A class of settings may be loaded for ``--help`` and completion. So its module imports only what is quick to import;
  a reader, or a method, imports the rest when it is called.
- The kind of a value is read from its annotation. pydantic-settings and click-extra do more of this, but they cost as
  much start-up time as all commands have, and neither answers for units, sections and secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import Any, TypeVar

import attrs

T = TypeVar("T")

Reader = Callable[[str], Any]
"""Makes a value of a string. Raises ValueError with a sentence for users."""


class FlagKind(Enum):
    """How a value is written."""

    TEXT = auto()
    SWITCH = auto()
    INTEGER = auto()
    NUMBER = auto()
    PATH = auto()
    DURATION = auto()
    """A duration as in Go, such as ``1m30s``; the value is in seconds."""
    ADDRESS = auto()
    """``host:port`` or ``unix:///path``; the value stays text."""
    WORDS = auto()
    """Words with commas between; the flag may be repeated."""


_KINDS = {
    "bool": FlagKind.SWITCH,
    "bool | None": FlagKind.SWITCH,
    "int": FlagKind.INTEGER,
    "float": FlagKind.NUMBER,
    "str": FlagKind.TEXT,
    "str | None": FlagKind.TEXT,
    "tuple[str, ...]": FlagKind.TEXT,
    "Path | None": FlagKind.PATH,
    "tuple[Path, ...]": FlagKind.PATH,
    "timedelta": FlagKind.DURATION,
}
"""The kind that an annotation says; `flag` may say another one."""


@attrs.define(kw_only=True, eq=False, repr=False)
class Flag:
    """A field's declaration, as `flag` was told it."""

    spelled: str
    help: str
    section: str
    kind: FlagKind | Reader | tuple[str, ...] | None
    text: str | None
    least: float | None
    most: float | None
    is_below: bool
    repeats: bool
    adds_up: bool
    metavar: str | None
    common: bool
    reload: bool
    secret: str = attrs.field(repr=False)
    doc: str
    default: Any

    @property
    def names(self) -> list[str]:
        """All spellings, the first one first: ``--guard``, ``--no-guard``."""
        return self.spelled.replace("/", " ").split()

    @property
    def key(self) -> str:
        """The key in the settings file: the flag without dashes."""
        return self.names[0].removeprefix("--")

    @property
    def parameter(self) -> str:
        """The name of click's parameter."""
        return self.key.replace("-", "_")


def flag(
    spelled: str,
    *,
    help: str,
    section: str,
    default: Any = None,
    kind: FlagKind | Reader | tuple[str, ...] | None = None,
    text: str | None = None,
    least: float | None = None,
    most: float | None = None,
    is_below: bool = False,
    repeats: bool = False,
    adds_up: bool = False,
    metavar: str | None = None,
    common: bool = False,
    reload: bool = False,
    secret: str = "",
    doc: str = "",
) -> Any:
    """A field of an attrs class that is a setting.

    ``spelled``: ``--ca-dir``, or with its negation ``--guard/--no-guard``, or with a second name ``--a --b``.
    ``kind``: where the annotation does not say it; a tuple: the choices. ``text``: the default as it is
    written, where that does not follow from ``default``. ``least``, ``most``: of a number, ``is_below``: without
    ``most`` itself. ``repeats``: each occurrence is one value. ``adds_up``: a list with commas between, or repeated.
    ``common``: shown by ``--help``, not only by ``--help-all``. ``reload``: takes effect when the file changes.
    ``secret``: the flag of a file that may have the value instead; it is never printed. ``doc``: Markdown for the
    table of the docs, in place of ``help``.
    """
    about = Flag(
        spelled=spelled, help=help, section=section, kind=kind, text=text, least=least, most=most, is_below=is_below,
        repeats=repeats, adds_up=adds_up, metavar=metavar, common=common, reload=reload, secret=secret, doc=doc,
        default=default,
    )  # fmt: skip
    return attrs.field(default=default, metadata={Flag: about}, repr=not secret)


def group(settings: type[Any], *, switch: Any = None, default: Any = attrs.NOTHING) -> Any:
    """A field that holds other settings. ``switch``: a `flag`; while it is off, the field holds None."""
    more: dict[Any, Any] = {} if switch is None else {Flag: switch.metadata[Flag]}
    given: dict[str, Any] = {"factory": settings} if default is attrs.NOTHING else {"default": default}
    return attrs.field(**given, metadata={_GROUP: settings, **more})


_GROUP = "settings"


def flags_of(settings: type[Any]) -> Iterator[Flag]:
    """The flags of a class of settings and of the groups in it, in order."""
    for field in attrs.fields(settings):
        if Flag in field.metadata:
            about: Flag = field.metadata[Flag]
            if about.kind is None:
                about.kind = FlagKind.SWITCH if _GROUP in field.metadata else _KINDS[str(field.type)]
            yield about
        if _GROUP in field.metadata:
            yield from flags_of(field.metadata[_GROUP])


def built(settings: type[T], values: Mapping[str, Any]) -> T:
    """The settings that values come to; ``values`` has one for each flag, by `Flag.parameter`."""
    given = {}
    for field in attrs.fields(settings):  # type: ignore[arg-type]  # every class of settings is one of attrs
        about: Flag | None = field.metadata.get(Flag)
        inner = field.metadata.get(_GROUP)
        if inner is not None:
            is_on = about is None or values[about.parameter]
            given[field.name] = built(inner, values) if is_on else None
        elif about is not None:
            given[field.name] = _as_annotated(str(field.type), values[about.parameter])
    return settings(**given)


def _as_annotated(annotation: str, value: Any) -> Any:
    if annotation != "timedelta":
        return value
    from datetime import timedelta

    return timedelta(seconds=value)
