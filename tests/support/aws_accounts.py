"""Where AWS credentials come from, as its documentation has it: a machine's metadata (IMDSv2), and a token service.

metadata = MetadataDouble("ASIA...", "secret", "token")
async with serving(metadata) as port: ...
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from mesh_pilot.net.http.connection import Message

ROLE = "mesh-pilot"
STS_ROLE = f"arn:aws:iam::111122223333:role/{ROLE}"
_CREDENTIALS = "/latest/meta-data/iam/security-credentials/"


def _in_hours(hours: int) -> str:
    return f"{datetime.now(UTC) + timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}"


class MetadataDouble:
    """IMDS of a machine that takes version 2 alone. State: what was asked."""

    def __init__(self, access_key: str, secret_key: str, token: str) -> None:
        self._keys = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": access_key,
            "SecretAccessKey": secret_key,
            "Token": token,
        }
        self.asked: list[str] = []
        self.refused = 0

    async def __call__(self, scope: Message, receive: object, send: Callable[[Message], Any]) -> None:
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        method, path = scope["method"], scope["path"]
        self.asked.append(f"{method} {path}")
        match method, path:
            case "PUT", "/latest/api/token" if headers.get("x-aws-ec2-metadata-token-ttl-seconds", "").isdigit():
                await _say(send, 200, b"a-token-of-imds")
            case "GET", _ if headers.get("x-aws-ec2-metadata-token") != "a-token-of-imds":
                self.refused += 1
                await _say(send, 401, b"")
            case "GET", str(there) if there == _CREDENTIALS:
                await _say(send, 200, ROLE.encode())
            case "GET", str(there) if there == f"{_CREDENTIALS}{ROLE}":
                await _say(send, 200, json.dumps({**self._keys, "Expiration": _in_hours(6)}).encode())
            case _:
                await _say(send, 404, b"")


class TokenServiceDouble:
    """STS with one role, for web identities. State: none."""

    def __init__(self, keys: Mapping[str, tuple[str, str, str]]) -> None:
        """``keys``: access key, secret key and session token, by the web identity's token."""
        self._keys = keys

    async def __call__(self, scope: Message, receive: Callable[[], Any], send: Callable[[Message], Any]) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        is_asked = asked.get("Action"), asked.get("Version"), asked.get("RoleArn")
        found = self._keys.get(asked.get("WebIdentityToken", ""))
        if is_asked != ("AssumeRoleWithWebIdentity", "2011-06-15", STS_ROLE) or not asked.get("RoleSessionName"):
            await _say(send, 400, _failure("ValidationError", "not a request of AssumeRoleWithWebIdentity"))
        elif found is None:
            await _say(send, 400, _failure("InvalidIdentityToken", "No OpenIDConnect provider found"))
        else:
            names = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
            parts = "".join(
                f"<{name}>{escape(value)}</{name}>" for name, value in zip(names, (*found, _in_hours(1)), strict=True)
            )
            text = (
                '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
                f"<AssumeRoleWithWebIdentityResult><Credentials>{parts}</Credentials>"
                "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
            )
            await _say(send, 200, text.encode())


def _failure(code: str, message: str) -> bytes:
    text = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
    return f'<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">{text}</ErrorResponse>'.encode()


async def _say(send: Callable[[Message], Any], status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})
