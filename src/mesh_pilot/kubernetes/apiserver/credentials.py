"""The credentials for the next request: files as they are now, or what an exec plugin gave until it expires.

Source of the rules: Kubernetes, "Client Authentication (v1)".
"""

from __future__ import annotations

import base64
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

import attrs
import trio

from mesh_pilot.kubernetes.apiserver.access import Access, ExecPlugin, KubernetesError

PLUGIN_SECONDS = 60.0
"""The longest time a plugin may take: it may ask a server, but not a person."""

PLUGIN_PAUSE_SECONDS = 5.0
"""The shortest time from one run of a plugin to the next, however many requests want it."""

EARLY_SECONDS = 10.0
"""The time before they expire from which credentials are no longer used."""

MAX_PLUGIN_BYTES = 1_000_000
"""The most that a plugin may give; it is ended if it gives more."""
MAX_ERROR_BYTES = 64 * 1024


@attrs.frozen(kw_only=True)
class Credential:
    """The secrets of a request."""

    authorization: str = attrs.field(default="", repr=False)
    certificate: bytes = attrs.field(default=b"", repr=False)
    key: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class _Given:
    """An answer of a plugin: credentials or the reason why there are none; when it came, until when it is good."""

    credential: Credential | None
    error: str
    at: float
    until: float


class CredentialSource:
    """State: what the plugin gave last."""

    def __init__(self, access: Access, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._access = access
        self._wall_clock = wall_clock
        self._given: _Given | None = None
        self._turn = trio.Lock()

    async def current(self) -> Credential:
        """The credentials for a request now. Raises KubernetesError."""
        access = self._access
        if access.plugin is not None and not access.token and not access.password:
            return await self._from_plugin(access.plugin)
        authorization = ""
        if access.token:
            authorization = _bearer(access.token.read().decode("utf-8", "replace"))
            if not authorization:
                raise KubernetesError(f"{access.server}: its token is not one line of printable ASCII")
        elif access.password:
            authorization = "Basic " + base64.b64encode(access.password.encode()).decode()
        return Credential(authorization=authorization, certificate=access.certificate.read(), key=access.key.read())

    async def after_refusal(self, refused: Credential) -> Credential | None:
        """Other credentials, as the server refused these; None if there are no others. Raises KubernetesError."""
        given = self._given
        if given is not None and given.credential == refused and trio.current_time() >= given.at + PLUGIN_PAUSE_SECONDS:
            self._given = None
        found = await self.current()
        return found if found != refused else None

    async def _from_plugin(self, plugin: ExecPlugin) -> Credential:
        async with self._turn:
            given = self._given
            if given is None or self._is_over(given):
                given = self._given = await self._ask(plugin)
        if given.credential is None:
            raise KubernetesError(given.error)
        return given.credential

    def _is_over(self, given: _Given) -> bool:
        if trio.current_time() < given.at + PLUGIN_PAUSE_SECONDS:
            return False
        return given.credential is None or self._wall_clock() >= given.until - EARLY_SECONDS

    async def _ask(self, plugin: ExecPlugin) -> _Given:
        try:
            credential, until = await _run(plugin)
        except KubernetesError as error:
            return _Given(None, f"{self._access.server}: {error}", trio.current_time(), math.inf)
        return _Given(credential, "", trio.current_time(), until)


async def _run(plugin: ExecPlugin) -> tuple[Credential, float]:
    """The credentials that a plugin gives, and until when they are good. Raises KubernetesError."""
    environment = {**os.environ, **dict(plugin.environment), "KUBERNETES_EXEC_INFO": plugin.request()}
    name = f"the exec plugin {plugin.command}"
    hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
    found: tuple[int, bytearray, bytearray] | None = None
    try:
        with trio.move_on_after(PLUGIN_SECONDS):
            found = await _output([plugin.command, *plugin.arguments], environment)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise KubernetesError(f"{name} cannot be run: {reason}{hint or '; install it, or use a token'}") from None
    if found is None:
        raise KubernetesError(f"{name} gave no credentials within {PLUGIN_SECONDS:g} s; does it wait for somebody?")
    status, output, errors = found
    if len(output) > MAX_PLUGIN_BYTES:
        raise KubernetesError(f"{name} gave more than {MAX_PLUGIN_BYTES} bytes, and was ended{hint}")
    if status:
        said = _one_line(errors.decode("utf-8", "replace"))
        raise KubernetesError(f"{name} failed with status {status}: {said or 'it says nothing'}{hint}")
    try:
        return _read_credential(bytes(output), plugin.api_version)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise KubernetesError(f"{name} gave no ExecCredential of {plugin.api_version}: {error}") from None


async def _output(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bytearray, bytearray]:
    """Status, output and the end of the errors of a program, which is ended if it gives too much, or if cancelled.

    Raises OSError and ValueError.
    """
    output, errors = bytearray(), bytearray()

    async def read(stream: trio.abc.ReceiveStream) -> None:
        async for part in stream:
            output.extend(part)
            if len(output) > MAX_PLUGIN_BYTES:
                nursery.cancel_scope.cancel()

    async def read_errors(stream: trio.abc.ReceiveStream) -> None:
        async for part in stream:
            errors.extend(part)
            del errors[:-MAX_ERROR_BYTES]

    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with process.stdout, process.stderr, trio.open_nursery() as nursery:
            nursery.start_soon(read, process.stdout)
            nursery.start_soon(read_errors, process.stderr)
            await process.wait()
    finally:
        await _end(process)
    return process.returncode or 0, output, errors


async def _end(process: trio.Process) -> None:
    """End a plugin and all that it has started, at once: it may not listen to SIGTERM, and holds nothing of ours."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with trio.CancelScope(shield=True):
        await process.wait()


def _read_credential(text: bytes, api_version: str) -> tuple[Credential, float]:
    """Raises ValueError, TypeError and LookupError, none of which quotes what it gave."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(found, Mapping) or found.get("kind") != "ExecCredential":
        raise ValueError("the kind is another")
    if found.get("apiVersion") != api_version:
        raise ValueError("the apiVersion is another")
    status = found.get("status")
    if not isinstance(status, Mapping):
        raise ValueError("it has no status")
    # As client-go has it: a token, a certificate with its key, or both; an absent end means forever.
    token, expires = status.get("token"), status.get("expirationTimestamp")
    certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
    if not token and not certificate:
        raise ValueError("it has neither a token nor a certificate")
    if bool(certificate) != bool(key):
        raise ValueError("it has a certificate without its key, or a key without its certificate")
    authorization = _bearer(str(token)) if token else ""
    if token and not authorization:
        raise ValueError("the token is not one line of printable ASCII")
    credential = Credential(
        authorization=authorization,
        certificate=str(certificate or "").encode(),
        key=str(key or "").encode(),
    )
    return credential, datetime.fromisoformat(str(expires)).timestamp() if expires else math.inf


def _bearer(token: str) -> str:
    """The header of a token; empty if none can have it, as an error of HTTP would show the token."""
    token = token.strip()
    return f"Bearer {token}" if token and token.isascii() and token.isprintable() else ""


def _one_line(text: str) -> str:
    """The last line that says something: programs tell what went wrong there."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return "".join(c if c.isprintable() else " " for c in lines[-1][:300]) if lines else ""
