"""The object in the body of a request: read, and checked as files are, with all its problems."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import attrs

from mesh_pilot.istio.kinds import KINDS, Kind
from mesh_pilot.istio.reading.decode import decode, decode_document
from mesh_pilot.istio.reading.yaml import Document
from mesh_pilot.model.config import Config, ConfigError, ConfigKey, Origin, Problem, Severity
from mesh_pilot.model.json import IF_GIVEN, as_json
from mesh_pilot.model.redaction import REDACTED
from mesh_pilot.ops.api.route import ApiError
from mesh_pilot.sources.config_store.base import Object
from mesh_pilot.sources.config_store.documents import objects_in, version_in, without_server_fields

MOST_PROBLEMS = 100
"""Problems of an answer."""

_ORIGIN = Origin("api", "the body")


@attrs.frozen
class Proposed:
    """An object that somebody wants to be there."""

    document: dict[str, Any] = attrs.field(repr=False)
    """As it is stored."""
    config: Config
    version: str
    """The version that it brings in its metadata; empty if it brings none."""


def proposed(body: bytes, key: ConfigKey) -> Proposed:
    """The object in a body, which must be the one of the path. Raises ApiError with all its problems.

    For a thread.
    """
    if REDACTED.encode() in body:  # what was read here goes back: the secret would be lost
        raise ApiError(422, f"{key} has {REDACTED}, which is shown in place of a secret: write the secret itself")
    found = objects_in(body, _ORIGIN)
    if len(found) != 1:
        raise ApiError(400, f"the body must be one object in YAML or JSON; it has {len(found)}")
    (document,) = found
    if isinstance(document, ConfigError):
        raise _refused(400, document)
    document = attrs.evolve(document, data=_placed(document, key))
    try:
        config = decode_document(document, origin=_ORIGIN, default_namespace=key.namespace or "default")
    except ConfigError as error:
        raise _refused(422, error) from None
    if config.key != key:
        raise ApiError(
            400,
            f"the path says {key}, but the body is {config.key}",
            problems=[as_json(each) for each in problem_rows([Problem("metadata", f"the body is {config.key}")])],
        )
    return Proposed(without_server_fields(document.data), config, version_in(document.data))


def _placed(document: Document, key: ConfigKey) -> dict[str, Any]:
    """A document with the name and the namespace of its path, where it does not say its own."""
    metadata = document.data.get("metadata")
    if not isinstance(metadata, dict):
        return dict(document.data)
    namespace = {} if KINDS[key.kind].cluster_scoped else {"namespace": key.namespace}
    own = {name: value for name, value in metadata.items() if value not in (None, "")}
    return {**document.data, "metadata": {"name": key.name, **namespace, **own}}


def config_of(document: Object, key: ConfigKey, origin: Origin) -> Config | None:
    """The config of a stored object; None if it is not valid."""
    try:
        return decode(document, origin=origin, default_namespace=key.namespace or "default")
    except ConfigError:
        return None


def is_same(one: Config | None, other: Config | None) -> bool:
    """True if two configs say the same, wherever and whenever they were written."""
    if one is None or other is None:
        return one is other
    return bool(
        one.key == other.key
        and one.labels == other.labels
        and _own(one.annotations) == _own(other.annotations)
        and one.spec == other.spec
    )


def _own(annotations: Any) -> dict[str, str]:
    return {name: value for name, value in annotations.items() if not name.startswith("kubectl.kubernetes.io/")}


@attrs.frozen
class BodyProblem:
    """A problem of the object in a body."""

    path: str
    reason: str
    severity: Severity
    line: int | None = attrs.field(metadata=IF_GIVEN)
    """In the body; left out where it is not known."""


def problem_rows(problems: Iterable[Problem]) -> list[BodyProblem]:
    return [BodyProblem(p.path, p.reason, p.severity, p.line or None) for p in islice(problems, MOST_PROBLEMS)]


def _refused(status: int, error: ConfigError) -> ApiError:
    errors = [each for each in error.problems if each.severity is Severity.ERROR]
    what = f"{error.key} " if error.key else ""
    first = "; ".join(map(str, errors[:3])) + (f"; and {len(errors) - 3} more" if len(errors) > 3 else "")
    return ApiError(
        status, f"{what}is refused: {first}", problems=[as_json(each) for each in problem_rows(error.problems)]
    )


def kind_or_error(kind: Kind | None, name: str) -> Kind:
    if kind is None:
        raise ApiError(404, f"no kind {name[:60]!r}: write VirtualService, virtualservices or vs")
    return kind
