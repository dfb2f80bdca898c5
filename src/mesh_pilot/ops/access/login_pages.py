"""The pages of logins at the web port: the form, the way to the issuer and back, the end of a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

import structlog
from starlette.requests import Request
from starlette.responses import Response

from mesh_pilot.ops.access import sessions
from mesh_pilot.ops.access.logins import CALLBACK, LOGIN_SECONDS, LoginError, Logins, cookie_of
from mesh_pilot.ops.access.requests import SAFE, is_https, is_same_origin, peer_of
from mesh_pilot.ops.access.roles import AccessFile
from mesh_pilot.ops.web.responses import text

log = structlog.get_logger(scope="admin")

LOGIN, LOGOUT, BY_ISSUER = "/login", "/logout", "/login/people"


class LoginPages:
    """Answers to the paths of logins. They begin and end sessions, which are the gate's."""

    def __init__(
        self,
        file: AccessFile | None,
        logins: Logins | None,
        begun: sessions.Sessions,
        refused: Callable[[Request, int, str], None],
    ) -> None:
        """``refused`` notes a login that failed: the request, the status, the reason."""
        self._file = file
        self._logins = logins
        self._sessions = begun
        self._refused = refused

    def page(self, path: str) -> Callable[[Request], Awaitable[Response]] | None:
        """The answer to a path of logins; None for other paths, and where logins are not set up."""
        pages = {LOGIN: self._login, LOGOUT: self._logout} if self._file is not None or self._logins is not None else {}
        if self._logins is not None:
            pages |= {BY_ISSUER: self._to_issuer, CALLBACK: self._from_issuer}
        return pages.get(path)

    def _form(self, following: str, message: str = "", status: int = 200) -> Response:
        issuer = self._logins.rules.client.issuer if self._logins is not None else ""
        return sessions.form(following, message, status, takes_tokens=self._file is not None, issuer=issuer)

    async def _login(self, request: Request) -> Response:
        if request.method in SAFE:
            return self._form(request.query_params.get("next", "/"))
        if request.method != "POST" or not is_same_origin(request):
            return text("log in with the form at /login\n", status=405)
        token, following = await sessions.sent_form(request)
        caller = self._file.rules().of_token(token) if self._file is not None else None
        if caller is None:
            self._refused(request, 401, "a login with a token that is not known")
            return self._form(following, "This token is not known here.", 401)
        log.info("login", user=caller.name, peer=peer_of(request))
        self._sessions.end(request.cookies.get(sessions.COOKIE, ""))
        value = self._sessions.begin(caller.digest)
        return sessions.logged_in(following, value, secure=is_https(request))

    async def _to_issuer(self, request: Request) -> Response:
        """The beginning of a login at the issuer: at the one address that the issuer sends back to."""
        assert self._logins is not None
        rules, following = self._logins.rules, sessions.local_path(request.query_params.get("next", "/"))
        if request.method not in SAFE:
            return text("log in with the link at /login\n", status=405)
        if request.headers.get("host", "").lower() not in (rules.host, rules.host.removesuffix(":443")):
            return sessions.redirect(f"{rules.url}{BY_ISSUER}?{urlencode({'next': following})}")
        try:
            url, name, value = await self._logins.begin(following)
        except LoginError as error:
            return self._failed(request, following, error)
        secure = rules.url.startswith("https:")
        return sessions.sent_to_issuer(url, name, value, secure=secure, seconds=LOGIN_SECONDS)

    async def _from_issuer(self, request: Request) -> Response:
        assert self._logins is not None
        query = request.query_params
        try:
            if request.method not in SAFE:
                raise LoginError(405, "the issuer has to send the browser back with a GET")
            login, following = await self._logins.finish(query, request.cookies)
        except LoginError as error:
            response = self._failed(request, "/", error)
        else:
            caller = self._logins.rules.visitor(login.person, "session")
            log.info("login", user=caller.name, **caller.shown_subject, roles=caller.shown_roles, peer=peer_of(request))
            self._sessions.end(request.cookies.get(sessions.COOKIE, ""))
            value = self._sessions.begin(login=login)
            secure = self._logins.rules.url.startswith("https:")
            response = sessions.logged_in_at_issuer(following, value, secure=secure)
        response.delete_cookie(cookie_of(query.get("state", "")), path="/login")
        return response

    def _failed(self, request: Request, following: str, error: LoginError) -> Response:
        """The page to log in at, with why that has failed."""
        self._refused(request, error.status, f"a login at the issuer: {error}")
        return self._form(following, f"{error}.", error.status)

    async def _logout(self, request: Request) -> Response:
        if request.method != "POST" or not is_same_origin(request):
            return text("POST ends the session\n", status=405)
        value = request.cookies.get(sessions.COOKIE, "")
        session = self._sessions.get(value)
        self._sessions.end(value)
        if session is None or session.login is None or self._logins is None:
            return sessions.logged_out()
        return sessions.logged_out(await self._logins.farewell(session.login))
