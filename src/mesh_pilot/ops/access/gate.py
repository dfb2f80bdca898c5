"""The app before that of the web port and of the admin socket: lets callers in by their role, and logs changes.

- What monitoring needs (``OPEN``) is for everybody.
- At a Unix socket, whoever can open it may do everything.
- At a loopback address, everybody on the machine may look. A browser there must name this machine in ``Host``: pages of
  the internet whose name leads to a loopback address (DNS rebinding) are refused.
- Everybody else needs a token of the file or of the issuer that people log in at, a session that was begun with either,
  or a certificate. Without any of these set up, the port serves nothing but what is for everybody.
- Each has roles in namespaces; a route of the API says which role it needs, and where. All other pages need the role in
  all namespaces, but for the page itself, which shows what the API answers.
- A change needs the header ``X-Mesh-Pilot``, or a bearer token: a browser sends neither for a foreign page.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import attrs
import structlog
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from mesh_pilot.identity.authenticators.token_issuers import TokenIssuer
from mesh_pilot.net.http.connection import PEER_NAMES, PEER_UID, App
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.ops.access import sessions
from mesh_pilot.ops.access.login_pages import LOGIN, LoginPages
from mesh_pilot.ops.access.logins import LoginError, Logins
from mesh_pilot.ops.access.open_pages import OPEN, WHAT_TO_DO
from mesh_pilot.ops.access.people import Person
from mesh_pilot.ops.access.requests import MOST_SHOWN, SAFE, is_bearer, is_same_origin, peer_of, shown_path, token_of
from mesh_pilot.ops.access.roles import AccessFile, AccessRules
from mesh_pilot.ops.api.app import BASE, error_response
from mesh_pilot.ops.api.route import ApiRoute
from mesh_pilot.ops.api.visitors import (
    EVERYWHERE,
    ISSUER,
    STILL_LET_IN,
    VISITOR,
    Forbidden,
    KnownIssuer,
    Role,
    Scope,
    Visitor,
)
from mesh_pilot.ops.web.responses import printable, text

log = structlog.get_logger(scope="admin")

PAGE = re.compile(r"/|/page/.*")
"""The page and its files, which have nothing of the mesh in them."""

NO_NAMESPACE = "-"
"""The namespace in the path of an object that has none."""

HEADER = "x-mesh-pilot"
"""A header that a browser sends to a foreign site only if that allows it, and this one never does."""


class NotLetIn(Exception):
    """A request that is not let in."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@attrs.frozen
class Need:
    """The role that a request needs, and where."""

    role: Role
    scope: Scope
    namespace: str = ""
    """The one that the path names."""

    def is_met_by(self, caller: Visitor) -> bool:
        """True if the caller has the role; the namespace of a proxy is compared once it is known which one is meant."""
        if self.scope is Scope.ALL:
            return caller.may(self.role)
        if self.scope is not Scope.NAMESPACE or (self.role is Role.VIEW and self.namespace == NO_NAMESPACE):
            return caller.may_somewhere(self.role)
        return caller.may(self.role, self.namespace)

    def reason(self, caller: Visitor) -> str:
        """The role that is missing, for people."""
        if self.scope is Scope.NAMESPACE and self.namespace != NO_NAMESPACE:
            return str(Forbidden(caller, self.role, self.namespace))
        if not caller.grants:
            groups = f"; the issuer's groups: {', '.join(caller.groups)[:300] or 'none'}"
            return f"{caller.name} has no role here{groups if caller.subject else ''}"
        if self.scope in (Scope.ANY, Scope.PROXY):
            return f"this needs {self.role} in some namespace, and {caller.name} has {caller.shown_roles}"
        return str(Forbidden(caller, self.role, EVERYWHERE))


class Gate:
    """An ASGI app. State: the sessions of browsers, and refusals that were logged lately."""

    def __init__(
        self,
        app: App,
        routes: Sequence[ApiRoute],
        *,
        file: AccessFile | None = None,
        logins: Logins | None = None,
        local: bool,
    ) -> None:
        """``routes``: those of the API. ``local``: only this machine can connect."""
        self._app = app
        self._routes = [(Route(BASE + each.path, _nothing, methods=[each.method]), each) for each in routes]
        self._file = file
        self._logins = logins
        self._local = local
        self._sessions = sessions.Sessions()
        self._pages = LoginPages(file, logins, self._sessions, self._note_failed_login)
        self._limiter = LogLimiter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        path = scope["path"]
        if path in OPEN and "verbose" not in request.query_params:
            await self._app(scope, receive, send)
        elif (answer := self._pages.page(path)) is not None:
            await (await answer(request))(scope, receive, send)
        else:
            await self._guarded(request, scope, receive, send)

    async def _guarded(self, request: Request, scope: Any, receive: Any, send: Any) -> None:
        if (order := order_of(request)) is not None:
            scope = {**scope, "method": "POST", "path": order[0], "query_string": order[1].encode()}
            scope["raw_path"] = quote(order[0], safe="/").encode()
            request = Request(scope, receive)
        caller: Visitor | None = None
        need = self.need_of(request)
        if need.scope is Scope.NONE:
            await self._app({**scope, ISSUER: self._issuer()}, receive, send)
            return
        try:
            person = await self._person(request)
            caller = self._caller(request, person)
            self._check(caller, request, need)
        except NotLetIn as refusal:
            self._note_refusal(request, caller, refusal)
            await self._refused(request, refusal)(scope, receive, send)
            return
        scope = {
            **scope,
            VISITOR: caller,
            STILL_LET_IN: partial(self._is_let_in, request, person, caller, self._believed),
        }
        if need.role is Role.VIEW:
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
                **caller.shown_subject,
                by=caller.how,
                peer=peer_of(request),
                order=f"{request.method} {shown_path(request)}",
                arguments=printable(body.decode("utf-8", "replace"))[:MOST_SHOWN],
                status=status or "no answer",
            )

    # -- who

    async def _person(self, request: Request) -> tuple[Person, str] | None:
        """The person who asks, and by what: a token of the issuer, or a session. None for other callers.

        Raises NotLetIn.
        """
        if self._logins is None or PEER_UID in (request.scope.get("extensions") or {}):
            return None
        given = request.headers.get("authorization")
        try:
            if given is not None:
                token = token_of(given)
                return (await self._logins.person_of_token(token), "login") if self._logins.is_meant(token) else None
            value = request.cookies.get(sessions.COOKIE, "")
            session = self._sessions.get(value)
            if session is None or session.login is None:
                return None
            person = await self._logins.person_now(session.login)
        except LoginError as error:
            raise NotLetIn(error.status, str(error)) from None
        if person is None:
            self._sessions.end(value)
            return None
        return person, "session"

    def _caller(self, request: Request, person: tuple[Person, str] | None) -> Visitor:
        """Raises NotLetIn."""
        # The strongest evidence counts: the socket's owner before a token, a token before the session that was begun
        # with one, that before a certificate, which browsers send unasked. A token that is wrong is refused although
        # the rest would do: whoever sends one means it. Only then does it count where the request comes from.
        extensions = request.scope.get("extensions") or {}
        if PEER_UID in extensions:
            return Visitor(f"uid {extensions[PEER_UID]}", {EVERYWHERE: Role.OPERATE}, "socket")
        if person is not None and self._logins is not None:
            return self._logins.rules.visitor(*person)
        rules = self._file.rules() if self._file is not None else AccessRules()
        has_tokens = self._file is not None or self._logins is not None
        if has_tokens and (given := request.headers.get("authorization")) is not None:
            caller = rules.of_token(token_of(given))
            if caller is None:
                raise NotLetIn(401, "this token is not known here")
            return caller
        if (value := request.cookies.get(sessions.COOKIE)) and (session := self._sessions.get(value)):
            caller = rules.of_digest(session.digest)
            if caller is not None:
                return attrs.evolve(caller, how="session")
        names = extensions.get(PEER_NAMES) or ()
        if (caller := rules.of_certificate(names)) is not None:
            return caller
        if self._local:
            if not names_this_machine(request.headers.get("host", "")):
                host = request.headers.get("host", "")[:100]
                raise NotLetIn(403, f"Host {host!r} is not this machine: ask 127.0.0.1 or localhost, or send a token")
            return Visitor("anybody on this machine", {EVERYWHERE: Role.VIEW}, "loopback")
        if not has_tokens:
            raise NotLetIn(403, WHAT_TO_DO)
        if names:
            raise NotLetIn(403, f"no line of --api-token-file names your certificate ({', '.join(names)[:200]})")
        raise NotLetIn(401, "a token is needed: send Authorization: Bearer TOKEN, or log in at /login")

    @property
    def _believed(self) -> TokenIssuer | None:
        """The issuer whose tokens name people."""
        return self._logins.rules.issuer if self._logins is not None else None

    def _is_let_in(
        self, request: Request, person: tuple[Person, str] | None, before: Visitor, believed: TokenIssuer | None
    ) -> bool:
        """True if a request would be let in now with the roles that its caller had before, since a stream was
        begun for these: tokens are revoked, sessions end, and roles and the issuer that is believed are changed."""
        if person is not None:
            if self._believed != believed:
                return False
            session = self._sessions.get(request.cookies.get(sessions.COOKIE, ""))
            if time.time() >= person[0].until or (person[1] == "session" and session is None):
                return False  # a session whose token can be renewed begins again with the next request
        try:
            caller = self._caller(request, person)
            self._check(caller, request, self.need_of(request))
        except NotLetIn:
            return False
        return caller.grants == before.grants

    def need_of(self, request: Request) -> Need:
        """The role that a request needs, and where."""
        for route, each in self._routes:
            found, scope = route.matches(request.scope)
            if found is Match.FULL:
                return Need(each.role, each.scope, scope.get("path_params", {}).get("namespace", ""))
        if request.method not in SAFE:
            return Need(Role.OPERATE, Scope.ALL)
        return Need(Role.VIEW, Scope.ANY if PAGE.fullmatch(request.scope["path"]) else Scope.ALL)

    def _check(self, caller: Visitor, request: Request, need: Need) -> None:
        """Raises NotLetIn."""
        if not need.is_met_by(caller):
            if caller.how == "loopback":
                raise NotLetIn(
                    403,
                    f"a change needs a token of role {need.role} (--api-token-file); on the control plane's machine,"
                    " its admin socket needs none: --pilot unix:///var/lib/mesh-pilot/admin.sock",
                )
            raise NotLetIn(403, need.reason(caller))
        if request.method in SAFE:
            return
        if HEADER not in request.headers and not is_bearer(request) and caller.how != "socket":
            raise NotLetIn(403, "a change needs the header X-Mesh-Pilot: 1, so that no foreign page can make it")
        if not is_same_origin(request):
            raise NotLetIn(403, "a page of another site may not make a change")

    def _issuer(self) -> KnownIssuer | None:
        if self._logins is None:
            return None
        rules = self._logins.rules
        return KnownIssuer(rules.client.issuer, rules.cli_client_id, rules.client.scopes)

    # -- refusals

    def _refused(self, request: Request, refusal: NotLetIn) -> Response:
        path = request.scope["path"]
        wants_page = "text/html" in request.headers.get("accept", "") and request.method in SAFE
        if refusal.status == 401 and wants_page and self._pages.page(LOGIN) and not path.startswith("/api/"):
            return sessions.redirect(f"{LOGIN}?next={quote(path)}")
        response = (
            error_response(refusal.status, str(refusal))
            if path.startswith("/api/")
            else text(f"{refusal}\n", status=refusal.status)
        )
        if refusal.status == 401:
            response.headers["www-authenticate"] = 'Bearer realm="mesh-pilot"'
        return response

    def _note_failed_login(self, request: Request, status: int, reason: str) -> None:
        self._note_refusal(request, None, NotLetIn(status, reason))

    def _note_refusal(self, request: Request, caller: Visitor | None, refusal: NotLetIn) -> None:
        """Log a refusal, at most once a minute for each reason and address."""
        peer = peer_of(request)
        left_out = self._limiter.admit(f"{peer} {refusal.status}", trio.current_time())
        if left_out is not None:
            log.warning(
                "request refused",
                user=caller.name if caller is not None else "",
                peer=peer,
                asked=f"{request.method} {shown_path(request)}",
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
