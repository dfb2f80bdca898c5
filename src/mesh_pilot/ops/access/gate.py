"""The app before that of the web port and of the admin socket: lets callers in by their role, and logs changes.

- What monitoring needs (``OPEN``) is for everybody.
- At a Unix socket, whoever can open it may do everything.
- At a loopback address, everybody on the machine may look. A browser there must name this machine in ``Host``: pages of
  the internet whose name leads to a loopback address (DNS rebinding) are refused.
- Everybody else needs a token, a session that was begun with one, or a certificate. Without any of these set up, the
  port serves nothing but what is for everybody.
- A change needs the header ``X-Mesh-Pilot``, or a bearer token: a browser sends neither for a foreign page.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import structlog
import trio
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route

from mesh_pilot.net.http.connection import PEER_NAMES, PEER_UID, App
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.ops.access import sessions
from mesh_pilot.ops.access.open_pages import OPEN, WHAT_TO_DO
from mesh_pilot.ops.access.roles import AccessFile, AccessRules
from mesh_pilot.ops.api.app import BASE, error_response
from mesh_pilot.ops.api.route import ApiRoute
from mesh_pilot.ops.api.visitors import STILL_LET_IN, VISITOR, Role, Visitor
from mesh_pilot.ops.web.responses import printable, text

log = structlog.get_logger(scope="admin")

LOGIN, LOGOUT = "/login", "/logout"

HEADER = "x-mesh-pilot"
"""A header that a browser sends to a foreign site only if that allows it, and this one never does."""

SAFE = ("GET", "HEAD")

MOST_SHOWN = 500
"""Characters of a path, and of a body, in the log."""


class NotLetIn(Exception):
    """A request that is not let in."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Gate:
    """An ASGI app. State: the sessions of browsers, and refusals that were logged lately."""

    def __init__(self, app: App, routes: Sequence[ApiRoute], *, file: AccessFile | None = None, local: bool) -> None:
        """``routes``: those of the API. ``local``: nobody but this machine can connect."""
        self._app = app
        self._routes = [
            (Route(BASE + route.path, _nothing, methods=[route.method]), route.role)
            for route in routes
            if route.role is not (Role.VIEW if route.method in SAFE else Role.OPERATE)
        ]
        self._file = file
        self._local = local
        self._sessions = sessions.Sessions()
        self._limiter = LogLimiter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        path = scope["path"]
        if path in OPEN and "verbose" not in request.query_params:
            await self._app(scope, receive, send)
        elif path in (LOGIN, LOGOUT) and self._file is not None:
            response = await self._login(request) if path == LOGIN else self._logout(request)
            await response(scope, receive, send)
        else:
            await self._guarded(request, scope, receive, send)

    async def _guarded(self, request: Request, scope: Any, receive: Any, send: Any) -> None:
        if (order := order_of(request)) is not None:
            scope = {**scope, "method": "POST", "path": order[0], "query_string": order[1].encode()}
            scope["raw_path"] = quote(order[0], safe="/").encode()
            request = Request(scope, receive)
        caller: Visitor | None = None
        try:
            caller = self._caller(request)
            self._check(caller, request)
        except NotLetIn as refusal:
            self._note_refusal(request, caller, refusal)
            await self._refused(request, refusal)(scope, receive, send)
            return
        scope = {**scope, VISITOR: caller, STILL_LET_IN: partial(self._is_let_in, request)}
        if self.role_for(request) is not Role.OPERATE:
            await self._app(scope, receive, send)
            return
        status = 0
        body = b""

        async def reading() -> MutableMapping[str, Any]:
            nonlocal body
            message: MutableMapping[str, Any] = await receive()
            body += message.get("body", b"")[:MOST_SHOWN]
            return message

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, reading, noting)
        finally:
            log.info(
                "api order",
                user=caller.name,
                by=caller.how,
                peer=_peer(request),
                order=f"{request.method} {_shown_path(request)}",
                arguments=printable(body.decode("utf-8", "replace"))[:MOST_SHOWN],
                status=status or "no answer",
            )

    # -- who

    def _caller(self, request: Request) -> Visitor:
        """Raises NotLetIn."""
        # The strongest evidence counts: the socket's owner before a token, a token before the session that was begun
        # with one, that before a certificate, which browsers send unasked. A token that is wrong is refused although
        # the rest would do: whoever sends one means it. Only then does it count where the request comes from.
        extensions = request.scope.get("extensions") or {}
        if PEER_UID in extensions:
            return Visitor(f"uid {extensions[PEER_UID]}", Role.OPERATE, "socket")
        rules = self._file.rules() if self._file is not None else AccessRules()
        if self._file is not None and (given := request.headers.get("authorization")) is not None:
            caller = rules.of_token(_token(given))
            if caller is None:
                raise NotLetIn(401, "this token is not known here")
            return caller
        if (value := request.cookies.get(sessions.COOKIE)) and (digest := self._sessions.digest(value)):
            caller = rules.of_digest(digest)
            if caller is not None:
                return Visitor(caller.name, caller.role, "session")
        names = extensions.get(PEER_NAMES) or ()
        if (caller := rules.of_certificate(names)) is not None:
            return caller
        if self._local:
            if not names_this_machine(request.headers.get("host", "")):
                host = request.headers.get("host", "")[:100]
                raise NotLetIn(403, f"Host {host!r} is not this machine: ask 127.0.0.1 or localhost, or send a token")
            return Visitor("anybody on this machine", Role.VIEW, "loopback")
        if self._file is None:
            raise NotLetIn(403, WHAT_TO_DO)
        if names:
            raise NotLetIn(403, f"no line of --api-token-file names your certificate ({', '.join(names)[:200]})")
        raise NotLetIn(401, "a token is needed: send Authorization: Bearer TOKEN, or log in at /login")

    def _is_let_in(self, request: Request) -> bool:
        """True if a request would be let in now: tokens are revoked, and sessions end."""
        try:
            self._check(self._caller(request), request)
        except NotLetIn:
            return False
        return True

    def role_for(self, request: Request) -> Role:
        """The role that a request needs."""
        for route, role in self._routes:
            if route.matches(request.scope)[0] is Match.FULL:
                return role
        return Role.VIEW if request.method in SAFE else Role.OPERATE

    def _check(self, caller: Visitor, request: Request) -> None:
        """Raises NotLetIn."""
        role = self.role_for(request)
        if not caller.may(role):
            if caller.how == "loopback":
                raise NotLetIn(
                    403,
                    "a change needs a token of role operate (--api-token-file); on the control plane's machine, its"
                    " admin socket needs none: --pilot unix:///var/lib/mesh-pilot/admin.sock",
                )
            raise NotLetIn(403, f"{caller.name} has the role {caller.role}, and this needs {role}")
        if request.method in SAFE:
            return
        if HEADER not in request.headers and not _is_bearer(request) and caller.how != "socket":
            raise NotLetIn(403, "a change needs the header X-Mesh-Pilot: 1, so that no foreign page can make it")
        if not _is_same_origin(request):
            raise NotLetIn(403, "a page of another site may not make a change")

    # -- logins

    async def _login(self, request: Request) -> Response:
        if request.method in SAFE:
            return sessions.form(request.query_params.get("next", "/"))
        assert self._file is not None
        if request.method != "POST" or not _is_same_origin(request):
            return text("log in with the form at /login\n", status=405)
        token, following = await sessions.sent_form(request)
        caller = self._file.rules().of_token(token)
        if caller is None:
            self._note_refusal(request, None, NotLetIn(401, "a login with a token that is not known"))
            return sessions.form(following, "This token is not known here.", 401)
        log.info("login", user=caller.name, peer=_peer(request))
        value = self._sessions.begin(caller.digest)
        return sessions.logged_in(following, value, secure=request.scope.get("scheme") == "https")

    def _logout(self, request: Request) -> Response:
        if request.method != "POST" or not _is_same_origin(request):
            return text("POST ends the session\n", status=405)
        self._sessions.end(request.cookies.get(sessions.COOKIE, ""))
        return sessions.logged_out()

    # -- refusals

    def _refused(self, request: Request, refusal: NotLetIn) -> Response:
        path = request.scope["path"]
        wants_page = "text/html" in request.headers.get("accept", "") and request.method in SAFE
        if refusal.status == 401 and wants_page and self._file is not None and not path.startswith("/api/"):
            return RedirectResponse(f"{LOGIN}?next={quote(path)}", status_code=303, headers=sessions.HEADERS)
        response = (
            error_response(refusal.status, str(refusal))
            if path.startswith("/api/")
            else text(f"{refusal}\n", status=refusal.status)
        )
        if refusal.status == 401:
            response.headers["www-authenticate"] = 'Bearer realm="mesh-pilot"'
        return response

    def _note_refusal(self, request: Request, caller: Visitor | None, refusal: NotLetIn) -> None:
        """Log a refusal, at most once a minute for each reason and address."""
        peer = _peer(request)
        left_out = self._limiter.admit(f"{peer} {refusal.status}", trio.current_time())
        if left_out is not None:
            log.warning(
                "request refused",
                user=caller.name if caller is not None else "",
                peer=peer,
                asked=f"{request.method} {_shown_path(request)}",
                status=refusal.status,
                reason=str(refusal),
                left_out=left_out,
            )


def order_of(request: Request) -> tuple[str, str] | None:
    """The path and the query of the order in the API that one of istiod's debug pages stands for; None for others."""
    path, query = request.scope["path"], request.query_params
    name = query.get("proxyID", "")
    if path == "/debug/adsz" and query.get("push"):
        return f"{BASE}/push", urlencode({"proxy": name} if name else {})
    if path == "/debug/force_disconnect":
        return (f"{BASE}/proxies/{name}/disconnect" if name else f"{BASE}/proxies/NAME/disconnect"), ""
    return None


async def _nothing(_: Request) -> Response:
    raise NotImplementedError


def _token(header: str) -> str:
    """The token in an Authorization header: a bearer's, or the password of Basic; empty if there is none."""
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).decode("utf-8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return ""
    return ""


def _is_bearer(request: Request) -> bool:
    return request.headers.get("authorization", "").lower().startswith("bearer ")


def _is_same_origin(request: Request) -> bool:
    """False if a browser says that a page of another site asks.

    ``Origin`` is for browsers that do not send ``Sec-Fetch-Site``, as over plain HTTP to another machine.
    """
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2].lower() == request.headers.get("host", "").lower()


def names_this_machine(host: str) -> bool:
    """True for a Host that no name of the internet can have: an IP address, or localhost."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    name = name.removeprefix("[").removesuffix("]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _peer(request: Request) -> str:
    return f"{request.client.host}" if request.client is not None else "unix"


def _shown_path(request: Request) -> str:
    query = request.scope.get("query_string", b"").decode("ascii", "replace")
    return printable(f"{request.scope['path']}{'?' + query if query else ''}")[:MOST_SHOWN]
