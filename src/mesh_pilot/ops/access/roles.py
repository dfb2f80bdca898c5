"""The roles of callers, and the file that gives them to tokens and certificates.

# ROLE[:NAMESPACE,...]  TOKEN                                  NAME
view                    pwGfbXgL0cVYS3nAc1uR1JQ9               grafana
operate                 sha256:9f86d081884c7d659a2feaa0c5...   alice
edit:shop,bank          certificate                            spiffe://cluster.local/ns/ops/sa/deploy
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from mesh_pilot.ops.access.read_again import AccessError, ReadAgain
from mesh_pilot.ops.api.visitors import EVERYWHERE, Role, Visitor, largest

SHORTEST_TOKEN = 16
"""Characters that a token has at least: fewer can be guessed."""

LONGEST_TOKEN = 4096

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


@attrs.frozen
class AccessRules:
    """The lines of a file."""

    tokens: Sequence[Visitor] = ()
    certificates: Sequence[Visitor] = ()

    @classmethod
    def parse(cls, text: str, place: str) -> AccessRules:
        """Raises AccessError for the first line that is wrong."""
        tokens: list[Visitor] = []
        certificates: list[Visitor] = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            where = f"{place}:{number}"
            if len(words) != 3:
                raise AccessError(f"{where}: write ROLE TOKEN NAME (view, edit or operate, the token, a name for logs)")
            word, token, name = words
            grants = _grants(word, where)
            if token == "certificate":
                certificates.append(Visitor(name, grants, "certificate"))
                continue
            given = _DIGEST.fullmatch(token)
            if token.startswith("sha256:") and given is None:
                raise AccessError(f"{where}: after sha256: there must be 64 lower-case hexadecimal digits")
            if given is None and len(token) < SHORTEST_TOKEN:
                raise AccessError(f"{where}: the token has less than {SHORTEST_TOKEN} characters; openssl rand -hex 24")
            digest = bytes.fromhex(given[1]) if given else digest_of(token)
            tokens.append(Visitor(name, grants, "token", digest))
        return cls(tuple(tokens), tuple(certificates))

    def of_token(self, token: str) -> Visitor | None:
        """The caller with a token. Takes the same time for each wrong one."""
        return self.of_digest(digest_of(token)) if len(token) <= LONGEST_TOKEN else None

    def of_digest(self, digest: bytes) -> Visitor | None:
        return _together([each for each in self.tokens if hmac.compare_digest(each.digest, digest)])

    def of_certificate(self, names: Iterable[str]) -> Visitor | None:
        """The caller with a certificate of these names."""
        wanted = set(names)
        return _together([caller for caller in self.certificates if caller.name in wanted])


def _together(found: Sequence[Visitor]) -> Visitor | None:
    """The caller of several lines: in each namespace the largest role, by the name of the first; None of none."""
    if len(found) < 2:
        return found[0] if found else None
    return attrs.evolve(found[0], grants=largest(each.grants for each in found))


def _grants(word: str, where: str) -> Mapping[str, Role]:
    """The roles in namespaces that a word gives: ``edit``, or ``edit:shop,bank``. Raises AccessError."""
    role, colon, listed = word.partition(":")
    if role not in [*Role]:
        raise AccessError(f"{where}: {role[:40]!r} is not a role; there are {', '.join(Role)}")
    namespaces = listed.split(",") if colon else [EVERYWHERE]
    if wrong := next((each for each in namespaces if each and not is_namespace(each)), None):
        raise AccessError(f"{where}: {wrong[:40]!r} is not the name of a namespace; write ROLE:NAMESPACE,...")
    if not all(namespaces):
        raise AccessError(f"{where}: a namespace is missing after {role}:; write ROLE:NAMESPACE,...")
    return dict.fromkeys(namespaces, Role(role))


def is_namespace(text: str) -> bool:
    """True for what a namespace may be called, and for the sign of all."""
    return text == EVERYWHERE or _NAMESPACE.fullmatch(text) is not None


class AccessFile(ReadAgain[AccessRules]):
    """The rules of a file of tokens."""

    def __init__(self, path: Path) -> None:
        """Raises AccessError."""
        super().__init__(path, "tokens", AccessRules.parse)
