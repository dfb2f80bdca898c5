"""Settings of a CA elsewhere that signs: the YAML file of ``--ca-signer``, whose ``kind`` says which one it is.

    kind: vault
    address: https://vault.internal:8200
    role: mesh

Each kind is a class of fields that `setting` declares. What is secret is in separate files, which are read at each
use, so this file may be shown to everybody. Why not flags: each kind has six to twelve settings, of which one kind's
are ever used together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

import attrs

from mesh_pilot.base.suggestions import did_you_mean
from mesh_pilot.istio.reading.decode_json import unknown_reason
from mesh_pilot.istio.reading.yaml import load
from mesh_pilot.model.config import ConfigError, Origin, Problem
from mesh_pilot.net.rpc import CertificateFiles

if TYPE_CHECKING:
    from mesh_pilot.identity.signers.remote import RemoteCa

KIND = "kind"
_KEY, _OF = "key", "of"

T = TypeVar("T")
S = TypeVar("S", bound="SignerSettings")


def setting(key: str, default: Any = attrs.NOTHING, *, of: type[Any] | None = None) -> Any:
    """A field of a class of settings, ``key`` in the file. Without a default it must be there.

    The annotation says what is read: ``str``, ``bool``, ``Path | None`` (below the file's folder unless absolute),
    ``tuple[str, ...]``, or with ``of`` an object of another such class.
    """
    return attrs.field(default=default, metadata={_KEY: key, _OF: of})


@attrs.frozen(kw_only=True)
class SignerSettings:
    """The settings that every kind has."""

    roots: Path | None = setting("roots", None)
    """PEM file of the roots that workloads trust; None: those that the CA names."""

    def problems(self) -> Iterator[Problem]:
        """All that keeps these settings from working, without a request to anybody."""
        return iter(())

    def certificate_files(self) -> CertificateFiles:
        """The files for TLS with the CA: what we show, and what we trust."""
        return CertificateFiles()


@attrs.frozen(kw_only=True)
class HttpSettings(SignerSettings):
    """The settings of a CA that is asked over HTTP."""

    address: str = setting("address")
    ca_certificates: Path | None = setting("caCertificates", None)
    """PEM file of the CA of its server; None: the system's."""
    client_certificate: Path | None = setting("clientCertificate", None)
    private_key: Path | None = setting("privateKey", None)

    def problems(self) -> Iterator[Problem]:
        """See ``SignerSettings``."""
        if reason := address_problem(self.address):
            yield Problem("address", reason)
        yield from self.key_problems()

    def key_problems(self) -> Iterator[Problem]:
        """The mistakes about the client certificate."""
        if self.private_key is not None and self.client_certificate is None:
            yield Problem("privateKey", "has no effect without clientCertificate")

    def certificate_files(self) -> CertificateFiles:
        """See ``SignerSettings``."""
        return CertificateFiles(certificate=self.client_certificate, key=self.private_key, trusted=self.ca_certificates)


def address_problem(address: str, schemes: tuple[str, ...] = ("https",)) -> str:
    """The reason why this is not the URL of a server; empty if it is."""
    example = f"write it as {schemes[0]}://ca.example.com"
    try:
        parts = urlsplit(address)
        is_usable = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return f"{address!r} is not a URL: {example}"
    if not is_usable:
        return f"{address!r} is not an {schemes[0]} URL: {example}"
    if parts.username or parts.password or parts.query or parts.fragment:
        return "the URL has a user, a query or a fragment: it has scheme, host, port and path only"
    return ""


@attrs.frozen
class SignerKind(Generic[S]):
    """A kind of CA."""

    settings: type[S]
    client: Callable[[S], RemoteCa]
    """The client of a CA with such settings. It sends nothing yet."""

    def read(self, data: Mapping[str, object], folder: Path) -> tuple[NamedCa | None, list[Problem]]:
        """The CA, or all that is wrong with the settings."""
        problems: list[Problem] = []
        found = _read_object(self.settings, data, "", folder, problems)
        if found is not None:
            problems = [*found.problems()]
        if found is None or problems:
            return None, problems
        return NamedCa(self.client(found), found.roots, found.certificate_files()), []


@attrs.frozen
class NamedCa:
    """The CA that a file names."""

    ca: RemoteCa
    roots: Path | None
    """The file of roots that count instead of the CA's."""
    files: CertificateFiles


def read_signer(path: Path, kinds: Mapping[str, Callable[[], SignerKind[Any]]]) -> NamedCa:
    """The CA in a file. ``kinds`` imports a kind. Raises ConfigError with all that is wrong."""
    origin = Origin("files", str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _refused(origin, Problem("", f"can't be read: {reason}")) from None
    documents = list(load(text, origin))
    for each in documents:
        if isinstance(each, ConfigError):
            raise each
    if len(documents) != 1 or isinstance(documents[0], ConfigError):
        raise _refused(origin, Problem("", f"has {len(documents)} YAML objects: write one, with a kind"))
    document = documents[0]
    data = dict(document.data)
    kind = data.pop(KIND, None)
    if not isinstance(kind, str) or kind not in kinds:
        meant = did_you_mean(str(kind), kinds) or f"; known: {', '.join(kinds)}"
        what = "is missing" if kind is None else f"there is no kind {kind!r}"
        raise _refused(origin, Problem(KIND, f"{what}{meant}", line=document.line_of(KIND)))
    found, problems = kinds[kind]().read(data, path.parent)
    if found is None:
        raise _refused(origin, *(attrs.evolve(each, line=document.line_of(each.path)) for each in problems))
    return found


def _refused(origin: Origin, *problems: Problem) -> ConfigError:
    return ConfigError(origin, None, problems)


def _read_object(of: type[T], data: Mapping[str, object], path: str, folder: Path, problems: list[Problem]) -> T | None:
    """The object; None if anything was wrong, which is in ``problems`` then."""
    fields = {field.metadata[_KEY]: field for field in attrs.fields(of)}  # type: ignore[arg-type]
    before = len(problems)
    values: dict[str, Any] = {}
    for key, value in data.items():
        here = f"{path}{key}"
        field = fields.get(key)
        if field is None:
            problems.append(Problem(here, unknown_reason("field", key, fields)))
        elif field.metadata[_OF] is not None:
            if isinstance(value, Mapping):
                values[field.name] = _read_object(field.metadata[_OF], value, f"{here}.", folder, problems)
            else:
                problems.append(Problem(here, "is not an object"))
        else:
            try:
                values[field.name] = _READERS[str(field.type)](value, folder)
            except ValueError as error:
                problems.append(Problem(here, str(error)))
    missing = [key for key, field in fields.items() if field.default is attrs.NOTHING and key not in data]
    problems += [Problem(f"{path}{key}", "is missing") for key in missing]
    return of(**values) if len(problems) == before else None


def _text(value: object, _: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("is not a string: write it in quotes" if isinstance(value, int | float) else "is not a string")
    return value


def _path(value: object, folder: Path) -> Path:
    return folder / _text(value, folder)


def _switch(value: object, _: Path) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false")
    return value


def _texts(value: object, folder: Path) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("is not a list of strings")
    return tuple(_text(each, folder) for each in value)


_READERS: Mapping[str, Callable[[object, Path], object]] = {
    "str": _text,
    "bool": _switch,
    "Path": _path,
    "Path | None": _path,
    "tuple[str, ...]": _texts,
}
