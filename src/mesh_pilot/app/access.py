"""The gate before the web port, made of the settings."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import attrs
import structlog

from mesh_pilot.app.settings import StartError, start_errors
from mesh_pilot.net.http.connection import App
from mesh_pilot.net.rpc.errors import AddressError
from mesh_pilot.net.rpc.net import UnixAddress, parse_address
from mesh_pilot.net.rpc.tls import TlsSource, server_tls
from mesh_pilot.ops.access.open_pages import WHAT_TO_DO, OpenFirst
from mesh_pilot.ops.access.people import PeopleFile
from mesh_pilot.ops.access.read_again import AccessError
from mesh_pilot.ops.access.roles import AccessFile
from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.web.later_app import LaterApp

log = structlog.get_logger(scope="admin")


@attrs.frozen
class AccessFiles:
    """The files that give roles at the web port; None for a file that is not named."""

    tokens: AccessFile | None = None
    people: PeopleFile | None = None


def access_files(settings: AccessSettings) -> AccessFiles:
    """Raises StartError."""
    flag = "--api-token-file"
    try:
        tokens = AccessFile(settings.token_file) if settings.token_file is not None else None
        flag = "--api-people-file"
        return AccessFiles(tokens, PeopleFile(settings.people_file) if settings.people_file is not None else None)
    except AccessError as error:
        raise StartError(f"{flag}: {error}") from error


def is_closed(files: AccessFiles, addresses: Sequence[str]) -> bool:
    """True if no client can come in at a web port at these addresses: several, where a name has several."""
    return files == AccessFiles() and not _are_ours(addresses)


def web_port(files: AccessFiles, web: App, monitoring: App, state: PlaneState, addresses: Sequence[str]) -> App:
    """The app of the web port at ``addresses``: a gate before ``web``, and without it the pages for everybody, which
    ``monitoring`` has."""
    if is_closed(files, addresses) and addresses:
        log.warning("the web page and the API are closed", http=", ".join(addresses), reason=WHAT_TO_DO)
    return OpenFirst(monitoring, gate_of(files, web, state, local=_are_ours(addresses)))


def gate_of(files: AccessFiles, web: App, state: PlaneState, *, local: bool) -> App:
    """The gate before the app of a port. ``local``: only this machine can connect."""

    def build() -> App:
        from mesh_pilot.ops.access.gate import Gate
        from mesh_pilot.ops.api.app import api_routes

        logins = None
        if files.people is not None:
            from mesh_pilot.ops.access.logins import Logins

            logins = Logins(files.people)
            state.login_troubles.append(lambda: logins.trouble)
        return Gate(web, api_routes(state), file=files.tokens, logins=logins, local=local)

    return LaterApp("mesh_pilot.ops.access.gate", build)


def _are_ours(addresses: Sequence[str]) -> bool:
    return bool(addresses) and all(map(is_local, addresses))


def tls_of(settings: AccessSettings) -> TlsSource | None:
    """TLS of the web port; None: plaintext. Raises StartError."""
    if settings.tls is None:
        return None
    with start_errors():
        return server_tls(settings.tls, require_client_certificate=False)


def is_local(address: str) -> bool:
    """True if only this machine can connect to an address; False for none."""
    try:
        parsed = parse_address(address)
    except AddressError:
        return False
    if isinstance(parsed, UnixAddress):
        return True
    try:
        return ipaddress.ip_address(parsed.host).is_loopback
    except ValueError:
        return False
