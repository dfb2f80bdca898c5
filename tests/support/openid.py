"""An OpenID Connect provider that people log in at, and a person who fills in its forms.

with issuer(tmp_path) as found:
    people = found.people("http://127.0.0.1:8080", [{"role": "view", "groups": ["shop-team"]}])
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import attrs
import httpx
from joserfc.jwk import RSAKey

from tests.support.binaries import require_binary
from tests.support.ports import free_ports

CLIENT, CLI_CLIENT = "mesh-pilot", "mesh-pilot-cli"

ACCOUNTS: Mapping[str, Mapping[str, Any]] = {
    "u-1": {"email": "alice@example.com", "email_verified": True, "groups": ["platform"]},
    "u-2": {"email": "bob@example.com", "email_verified": True, "groups": ["shop-team"]},
    "u-3": {"email": "carol@example.com", "email_verified": True, "groups": []},
    "u-4": {"email": "alice@example.com", "email_verified": False, "groups": []},
}
"""People by their subjects: a platform engineer, one of a team, one of none, one with another's address."""

ROLES: Sequence[Mapping[str, Any]] = (
    {"role": "operate", "groups": ["platform"]},
    {"role": "edit", "namespaces": ["shop"], "groups": ["shop-team"]},
    {"role": "view", "namespaces": ["cart"], "groups": ["shop-team"]},
)


@attrs.define(eq=False)
class Issuer:
    """A provider that runs, or can be started again; sessions and tokens are forgotten when it ends."""

    folder: Path
    port: int
    settings: dict[str, Any]
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self) -> Path:
        path = self.folder / "issuer.json"
        path.write_text(json.dumps(self.settings))
        return path

    def account(self, subject: str, **claims: Any) -> None:
        """Change the claims of somebody, from the next token on."""
        self.settings["accounts"][subject] = {**self.settings["accounts"][subject], **claims}
        self.write()

    def new_keys(self) -> None:
        """Sign with another key from the next start on; the one before is not told any more."""
        key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"}, private=True, auto_kid=True)
        self.settings["jwks"] = {"keys": [key.as_dict(private=True)]}

    def people(self, page: str, roles: Sequence[Mapping[str, Any]] = ROLES, **more: Any) -> str:
        """The content of a file of people who log in here, for the page at an address."""
        known = {"issuer": self.url, "clientId": CLIENT, "cliClientId": CLI_CLIENT, "url": page, "allowHttp": True}
        secret = self.folder / "secret"
        secret.write_text(self.settings["clients"][0]["client_secret"])
        return json.dumps({**known, "clientSecretFile": str(secret), "roles": [*roles], **more})

    def start(self) -> None:
        program = require_binary("oidc-provider", "OIDC_PROVIDER", built="oidc-provider/provider.mjs")
        command = [str(program), str(self.write())]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        assert any("listening" in line for line in self.process.stdout), "the provider ended"

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


@contextmanager
def issuer(folder: Path, page: str, *, starts: bool = True, id_token_seconds: int = 3600) -> Iterator[Issuer]:
    """A provider with two clients: the page at an address, and the command line."""
    made = folder / "issuer"
    made.mkdir()
    (port,) = free_ports(1)
    grants = ["refresh_token"]
    web = {
        "client_id": CLIENT,
        "client_secret": "a-secret-of-the-page",
        "redirect_uris": [f"{page}/login/callback"],
        "grant_types": ["authorization_code", *grants],
    }
    cli = {
        "client_id": CLI_CLIENT,
        "token_endpoint_auth_method": "none",
        "redirect_uris": [],
        "response_types": [],
        "grant_types": ["urn:ietf:params:oauth:grant-type:device_code", *grants],
    }
    accounts = {name: dict(claims) for name, claims in ACCOUNTS.items()}
    settings = {"issuer": f"http://127.0.0.1:{port}", "port": port, "clients": [web, cli], "accounts": accounts}
    found = Issuer(made, port, {**settings, "id_token_seconds": id_token_seconds})
    found.new_keys()
    try:
        if starts:
            found.start()
        yield found
    finally:
        found.stop()


class _Form(HTMLParser):
    """The first form of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        if tag == "form" and self.action is None:
            self.action = found.get("action", "")
        elif tag in ("input", "button") and found.get("name") and self.action is not None:
            self.fields[found["name"]] = found.get("value", "")


def confirm(client: httpx.Client, url: str, subject: str) -> httpx.Response:
    """Follow an address of the provider as somebody who logs in and agrees, to the first page without a form, or to
    the first address that is not the provider's."""
    home = httpx.URL(url).netloc
    reply = client.get(url)
    for _ in range(20):
        if reply.is_redirect:
            target = httpx.URL(urljoin(str(reply.url), reply.headers["location"]))
            if target.netloc != home:
                return reply
            reply = client.get(target)
            continue
        form = _Form(reply.text)
        if form.action is None or reply.status_code != 200:
            return reply
        fields = {**form.fields, **({"login": subject, "password": "any"} if "login" in form.fields else {})}
        fields.pop("abort", None)
        reply = client.post(urljoin(str(reply.url), form.action), data=fields)
    raise AssertionError("the provider asks and asks")
