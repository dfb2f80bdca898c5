"""The roles of callers, and the file that gives them to tokens and certificates.

# ROLE    TOKEN                                  NAME
view      pwGfbXgL0cVYS3nAc1uR1JQ9               grafana
operate   sha256:9f86d081884c7d659a2feaa0c5...   alice
operate   certificate                            spiffe://cluster.local/ns/ops/sa/deploy
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
import structlog

from mesh_pilot.ops.api.visitors import Role, Visitor

log = structlog.get_logger(scope="admin")

SHORTEST_TOKEN = 16
"""Characters that a token has at least: fewer can be guessed."""

LONGEST_TOKEN = 4096

LOOK_SECONDS = 1.0
"""The file is looked at for changes at most so often."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


class AccessError(Exception):
    """The file, the line, and what is wrong there."""


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
                raise AccessError(f"{where}: write ROLE TOKEN NAME (view or operate, the token, a name for logs)")
            role, token, name = words
            if role not in [*Role]:
                raise AccessError(f"{where}: {role[:40]!r} is no role; there are view and operate")
            if token == "certificate":
                certificates.append(Visitor(name, Role(role), "certificate"))
                continue
            given = _DIGEST.fullmatch(token)
            if token.startswith("sha256:") and given is None:
                raise AccessError(f"{where}: after sha256: there must be 64 lower-case hexadecimal digits")
            if given is None and len(token) < SHORTEST_TOKEN:
                raise AccessError(f"{where}: the token has less than {SHORTEST_TOKEN} characters; openssl rand -hex 24")
            digest = bytes.fromhex(given[1]) if given else digest_of(token)
            tokens.append(Visitor(name, Role(role), "token", digest))
        return cls(tuple(tokens), tuple(certificates))

    def of_token(self, token: str) -> Visitor | None:
        """The caller with a token. Takes the same time for each wrong one."""
        return self.of_digest(digest_of(token)) if len(token) <= LONGEST_TOKEN else None

    def of_digest(self, digest: bytes) -> Visitor | None:
        found = None
        for caller in self.tokens:
            if hmac.compare_digest(caller.digest, digest):
                found = caller
        return found

    def of_certificate(self, names: Iterable[str]) -> Visitor | None:
        """The caller with a certificate of these names; the larger role, if several are listed."""
        wanted = set(names)
        found = [caller for caller in self.certificates if caller.name in wanted]
        return max(found, key=lambda caller: caller.role is Role.OPERATE, default=None)


class AccessFile:
    """The rules of a file, read again when it changes. A change that is wrong is logged; the rules before stay."""

    def __init__(self, path: Path) -> None:
        """Raises AccessError."""
        self._path = path
        self._looked = time.monotonic()
        self._stamp = self._now()
        self._rules = self._read()

    def rules(self) -> AccessRules:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            stamp = self._now()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._rules = self._read()
                    log.info("tokens of the web port read again", file=str(self._path), tokens=len(self._rules.tokens))
                except AccessError as error:
                    log.warning("tokens of the web port cannot be read; those before stay in force", reason=str(error))
        return self._rules

    def _now(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> AccessRules:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise AccessError(f"{self._path}: {reason}") from None
        return AccessRules.parse(text, str(self._path))
