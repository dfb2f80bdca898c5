"""The SDS protocol of one stream as a pure state machine: requests and secrets in, responses out; SotW and Delta.

The stream waits for a secret that is known but not there yet. A name that is unknown is refused: alone it ends the
stream, next to others it is left out, and in Delta named as removed. What was refused by the client is sent again when
it differs. Source: "xDS REST and gRPC protocol".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import attrs

from mesh_pilot.agent.base.wire import Parts
from mesh_pilot.agent.identity.secrets import AgentSecret, file_secret
from mesh_pilot.base.protowire import WireError, field
from mesh_pilot.model.resource import IDENTITY_SECRET, SECRET, TRUST_SECRET

KNOWN = (IDENTITY_SECRET, TRUST_SECRET)
MAX_NAMES = 100
MAX_SHOWN = 300

Secrets = Mapping[str, AgentSecret]
"""Secrets that are there now, by name."""


class SdsError(Exception):
    """A request that ends its stream; ``is_unknown``: it names nothing that is here."""

    def __init__(self, message: str, *, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown


@attrs.define
class SdsCounts:
    """Counters of all streams."""

    sent: int = 0
    accepted: int = 0
    refused: int = 0
    """NACKs."""
    unknown: int = 0
    """Requests for names that are not here."""
    strangers: int = 0
    """Calls of processes of other users."""


def _read(message: bytes) -> Parts:
    try:
        return Parts(message)
    except WireError as error:
        raise SdsError(f"the request {error}") from None


class SecretStream:
    """One stream of SotW SDS. ``events`` has what is to be logged, until it is taken."""

    TYPE, NONCE, ERROR = 4, 5, 6

    def __init__(self, counts: SdsCounts) -> None:
        self._counts = counts
        self._names: dict[str, None] = {}
        self._sent: dict[str, str] = {}
        """The version of each secret that the client was sent last, or says to have."""
        self._nonce = 0
        self._warned: set[str] = set()
        self.events: list[Mapping[str, str]] = []

    def request(self, message: bytes, secrets: Secrets) -> bytes | None:
        """Take a request; the response to send, if any. Raises SdsError."""
        request = _read(message)
        wanted = request.text(self.TYPE, "replace")
        if wanted and wanted != SECRET:
            raise SdsError(f"this server has secrets (SDS) only, not {wanted[:MAX_SHOWN]!r}")
        # Before our first response a nonce is made up, or another server's: the request answers nothing.
        if self._nonce and (nonce := request.text(self.NONCE, "replace")) and not self._take_answer(nonce, request):
            return None
        self._subscribe(request, secrets)
        if len(self._names) > MAX_NAMES:
            raise SdsError(f"more than {MAX_NAMES} secrets on one stream")
        return self.changed(secrets)

    def _take_answer(self, nonce: str, request: Parts) -> bool:
        """Note an ACK or NACK; False if the request does not count, as it answers an earlier response."""
        if nonce != str(self._nonce):
            return False
        if self.ERROR not in request:
            self._counts.accepted += 1
            return True
        self._counts.refused += 1
        status = _read(request.last(self.ERROR)).text(2, "replace")
        self.events.append({"event": "secret refused", "names": ", ".join(self._names), "reason": status[:MAX_SHOWN]})
        return True

    def _subscribe(self, request: Parts, secrets: Secrets) -> None:
        names = request.texts(3, "replace")
        self._check(names)
        self._names = dict.fromkeys(names)
        self._sent = {name: version for name, version in self._sent.items() if name in self._names}
        if (version := request.text(1, "replace")) and not self._nonce and version == self._version(secrets):
            self._sent = {name: secrets[name].version for name in self._names if name in secrets}

    def _check(self, names: tuple[str, ...]) -> None:
        """Refuse what is not here and never will be."""
        unknown = [name for name in names if name not in KNOWN and file_secret(name) is None]
        for name in unknown:
            if name not in self._warned and len(self._warned) < MAX_NAMES:
                self._warned.add(name)
                self._counts.unknown += 1
                self.events.append({"event": "secret unknown", "names": name[:MAX_SHOWN]})
        if unknown and len(unknown) == len(names) and not self._names:
            text = f"there is no secret {unknown[0][:MAX_SHOWN]!r} at this agent; it has {' and '.join(KNOWN)}"
            raise SdsError(text, is_unknown=True)

    def changed(self, secrets: Secrets) -> bytes | None:
        """The response that tells the client of secrets that it has not; None if it has all."""
        held = self._held(secrets)
        if all(self._sent.get(secret.name) == secret.version for secret in held):
            return None
        self._sent = {secret.name: secret.version for secret in held}
        self._nonce += 1
        self._counts.sent += 1
        return b"".join(
            (
                field(1, self._version(secrets).encode()),
                *(field(2, _any(secret)) for secret in held),
                field(4, SECRET.encode()),
                field(5, str(self._nonce).encode()),
            )
        )

    def _held(self, secrets: Secrets) -> list[AgentSecret]:
        found = (secrets.get(name) or file_secret(name) for name in self._names)
        return [secret for secret in found if secret is not None]

    def _version(self, secrets: Secrets) -> str:
        versions = "".join(secret.version for secret in self._held(secrets))
        return hashlib.sha256(versions.encode()).hexdigest()[:16]


class DeltaSecretStream(SecretStream):
    """One stream of Delta SDS."""

    TYPE, NONCE, ERROR = 2, 6, 7

    def __init__(self, counts: SdsCounts) -> None:
        super().__init__(counts)
        self._removed: list[str] = []

    def _take_answer(self, nonce: str, request: Parts) -> bool:
        super()._take_answer(nonce, request)
        return True  # it says what changes of the subscription, which no later request repeats

    def _subscribe(self, request: Parts, secrets: Secrets) -> None:
        names = request.texts(3, "replace")
        self._check(names)
        for name in names:
            self._names[name] = None
            self._sent.pop(name, None)  # who subscribes again wants it again
            if name not in KNOWN and file_secret(name) is None:
                self._removed.append(name)
        for name in request.texts(4, "replace"):
            self._names.pop(name, None)
            self._sent.pop(name, None)
        for pair in map(_read, request.all(5)):
            name = pair.text(1, "replace")
            if name in self._names:
                self._sent[name] = pair.text(2, "replace")

    def changed(self, secrets: Secrets) -> bytes | None:
        new = [secret for secret in self._held(secrets) if self._sent.get(secret.name) != secret.version]
        removed, self._removed = self._removed, []
        if not new and not removed:
            return None
        self._sent.update((secret.name, secret.version) for secret in new)
        self._nonce += 1
        self._counts.sent += 1
        return b"".join(
            (
                field(1, self._version(secrets).encode()),
                *(field(2, _delta_resource(secret)) for secret in new),
                field(4, SECRET.encode()),
                field(5, str(self._nonce).encode()),
                *(field(6, name.encode()) for name in removed),
            )
        )


def _any(secret: AgentSecret) -> bytes:
    return field(1, SECRET.encode()) + field(2, secret.body)


def _delta_resource(secret: AgentSecret) -> bytes:
    return field(1, secret.version.encode()) + field(2, _any(secret)) + field(3, secret.name.encode())
