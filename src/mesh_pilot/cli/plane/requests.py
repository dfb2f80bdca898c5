"""The client of a control plane's API: its address, token and certificates, and one line where there is no answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click

from mesh_pilot.cli.lib.options import FlagType, address

BASE = "/api/v1"

PAGE = 1000
"""Entries of a list that are asked for at once."""


@attrs.frozen
class PlaneClient:
    """A control plane's HTTP port or admin socket. Every method raises ClickException, in one line, if there is no good
    answer."""

    address: str
    """``host:port`` of its --http-addr, ``https://host:port``, or ``unix:///path`` of its admin socket."""
    timeout_seconds: float = 10.0
    token_file: Path | None = None
    token: str = attrs.field(default="", repr=False)
    """Used if there is no file."""
    ca: Path | None = None
    """The CA of the server's certificate; None: the system's."""
    certificate: Path | None = None
    """Our certificate, with the key in the same file or in ``key``."""
    key: Path | None = None
    has_login: bool = True
    """True if the user's login there counts, where there is neither token nor certificate."""
    problem: str = ""
    """The reason why it is not known which plane is meant: raised when something is asked."""

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at a path beneath ``/api/v1``; parameters of None are left out, lists are repeated."""
        return self.ask("GET", path, query)

    def items(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """All entries of a list at a path beneath ``/api/v1``, however many pages it has."""
        found: list[dict[str, Any]] = []
        following = None
        while True:
            page = self.get(path, **query, limit=PAGE, **({"continue": following} if following else {}))
            found += page["items"]
            following = page.get("continue")
            if not following:
                return found

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return self.ask("POST", path, query, body)

    def ask(self, method: str, path: str, query: dict[str, Any], body: Any = None) -> Any:
        from urllib.parse import urlencode

        wanted = {name: value for name, value in query.items() if value is not None}
        asked = f"{BASE}{path}{'?' + urlencode(wanted, doseq=True) if wanted else ''}"
        status, answer = self.request(method, asked, json=body)
        if status != 200:
            raise click.ClickException(self._error(status, answer, path))
        return _json(answer, f"{self.url}{BASE}{path}")

    def answer(self, method: str, path: str, query: dict[str, Any], content: bytes | None = None) -> tuple[int, Any]:
        """The status and the JSON at a path beneath ``/api/v1``, also of an error that is about what is asked.

        Raises ClickException where nothing can be asked: no answer, no token, no right, no such API.
        """
        from urllib.parse import urlencode

        wanted = {name: value for name, value in query.items() if value is not None}
        asked = f"{BASE}{path}{'?' + urlencode(wanted, doseq=True) if wanted else ''}"
        status, text = self.request(method, asked, content=content)
        if status in (401, 403):
            raise click.ClickException(self._error(status, text, path))
        try:
            return status, _json(text, "")
        except click.ClickException:
            raise click.ClickException(self._error(status, text, path)) from None

    def request(self, method: str, path: str, **content: Any) -> tuple[int, str]:
        """The status and the text of the answer at any path; ``content``: ``json`` or ``content`` of httpx."""
        import httpx

        if self.problem:
            raise click.ClickException(self.problem)
        url = f"{self.url}{path}"
        try:
            if self.address.startswith("unix:"):
                Path(self._socket()).lstat()
            with httpx.Client(
                transport=self._transport(), timeout=self.timeout_seconds, headers=self._headers()
            ) as client:
                reply = client.request(method, url, **content)
        except httpx.InvalidURL as error:
            raise click.ClickException(f"{url[:200]} is not a URL: {error}") from None
        except (httpx.HTTPError, OSError) as error:
            raise click.ClickException(self._no_answer(error)) from None
        return reply.status_code, reply.text

    @property
    def url(self) -> str:
        """The beginning of each URL."""
        if self.address.startswith("unix:"):
            return "http://admin"
        if "://" in self.address:
            return self.address.rstrip("/")
        host = "127.0.0.1" if self.address.startswith(":") else ""
        return f"http://{host}{self.address}"

    def _asks_for_logins(self) -> bool:
        return self.has_login and not self.address.startswith("unix:")

    def _socket(self) -> str:
        return self.address.removeprefix("unix:").removeprefix("//")

    def _transport(self) -> Any:
        import httpx

        if self.address.startswith("unix:"):
            return httpx.HTTPTransport(uds=self._socket())
        if not self.url.startswith("https:"):
            return httpx.HTTPTransport()
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise click.ClickException(f"--pilot-ca {self.ca}: {error.strerror or error}") from None
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except OSError as error:
                raise click.ClickException(f"--pilot-cert {self.certificate}: {error.strerror or error}") from None
        return httpx.HTTPTransport(verify=context)

    def _headers(self) -> dict[str, str]:
        headers = {"x-mesh-pilot": "1"}
        token = self.token
        if self.token_file is not None:
            try:
                token = self.token_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not text"
                raise click.ClickException(f"--token-file {self.token_file}: {reason}") from None
        if not token.strip() and self.token_file is None and self.certificate is None and self._asks_for_logins():
            from mesh_pilot.cli.plane.logins import token_at

            token = token_at(self.url)
        if token.strip():
            if not (token.strip().isascii() and token.strip().isprintable()) or len(token.split()) != 1:
                where = f"--token-file {self.token_file}" if self.token_file else "MESH_PILOT_TOKEN"
                raise click.ClickException(f"{where}: there must be one token, a single word, and nothing else")
            headers["authorization"] = f"Bearer {token.strip()}"
        return headers

    def _no_answer(self, error: Exception) -> str:
        """The reason why there is no answer, and what to do."""
        cause = _system_error(error)
        hint = "--pilot takes the address of its web page (--http-addr, by default 127.0.0.1:8080)"
        if self.address.startswith("unix:"):
            here = (
                "is mesh-pilot discovery running on this machine, with this --state-dir or --admin-socket?"
                " With --no-state it has a socket only where --admin-socket names one"
            )
            if isinstance(cause, FileNotFoundError):
                return f"there is no {self._socket()}: {here}"
            if isinstance(cause, PermissionError):
                return (
                    f"{self._socket()}: permission denied; only the user that mesh-pilot discovery runs as, and root,"
                    " may give orders"
                )
            if cause is not None:
                return f"no server answers at {self._socket()}: {error}; {here}"
            return f"{self._socket()} gives no proper answer: {error or type(error).__name__}"
        text = str(error)
        where = f"cannot ask {self.url}"
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return f"{where}: its certificate is not known here ({_reason(text)}); name its CA with --pilot-ca"
        if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
            return f"{where}: it does not speak TLS; write http:// instead of https://"
        if type(error).__name__ in ("ReadError", "RemoteProtocolError") and self.url.startswith("http:"):
            return f"what listens on {self.address} does not speak HTTP/1.1: {hint}"
        if type(error).__name__.endswith("Timeout"):
            return f"{where}: no answer within {self.timeout_seconds:g} s"
        return f"{where}: {text or type(error).__name__}; is it running? {hint}"

    def _error(self, status: int, answer: str, path: str) -> str:
        try:
            reason = str(_json(answer, "")["error"])
        except (click.ClickException, KeyError, TypeError):
            first = answer.strip().partition("\n")[0][:300]
            if "speaks TLS" in first:
                return f"{self.address} speaks TLS: write --pilot https://{self.address}"
            if status == 404:
                return f"{self.url}{BASE}{path} is not there: is {self.address} the --http-addr of a mesh-pilot?"
            return f"{self.url}{BASE}{path} answers {status}: {first}"
        if status == 401:
            return (
                f"{self.address}: {reason.partition(': send')[0]}; log in with mesh-pilot login where people do, else"
                " give --token-file, or keep it in a context:"
                f" mesh-pilot context add NAME --pilot {self.address} --token-file FILE; on its machine the admin"
                " socket needs none: --pilot unix:///var/lib/mesh-pilot/admin.sock"
            )
        return reason


@FlagType
def plane_address(text: str) -> str:
    """An address as ``--pilot`` takes it. Raises BadParameter."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme in ("http", "https"):
        address.convert(rest.rstrip("/"), None, None)
        return f"{scheme}://{rest.rstrip('/')}"
    address.convert(text, None, None)
    return text


def _json(text: str, where: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError:
        raise click.ClickException(f"{where} is not a page of mesh-pilot's API") from None


def _reason(text: str) -> str:
    return text.rpartition("failed: ")[2].partition(" (_ssl")[0]


def _system_error(error: BaseException | None) -> OSError | None:
    """The system's error behind others."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
