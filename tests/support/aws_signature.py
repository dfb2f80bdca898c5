"""Signature Version 4, as a server verifies it, written from AWS's "Create a signed AWS API request".

verify(request, secrets={"AKIA...": Credentials("wJalr...")}, region="eu-west-1", service="acm-pca", now=utc_now())
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from urllib.parse import parse_qsl, quote, unquote

import attrs

SKEW = timedelta(minutes=5)
_FORM = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/,]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?"
    r"SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})"
)


class SignatureRefused(Exception):
    """A request that AWS refuses before it looks at what is asked: the error's type, and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@attrs.frozen
class Secret:
    """The secret of an access key; a temporary one comes with a session token, and may have ended."""

    key: str = attrs.field(repr=False)
    token: str = attrs.field(default="", repr=False)
    is_over: bool = False


@attrs.frozen
class HttpRequest:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes


def verify(request: HttpRequest, secrets: Mapping[str, Secret], *, region: str, service: str, now: datetime) -> str:
    """The access key that has signed a request. Raises SignatureRefused."""
    headers = request.headers
    given = headers.get("authorization", "")
    if not given:
        raise SignatureRefused("MissingAuthenticationTokenException", "Missing Authentication Token")
    found = _FORM.fullmatch(given)
    if found is None:
        raise SignatureRefused("IncompleteSignature", "Authorization header is not of the form of AWS4-HMAC-SHA256")
    access_key, date, for_region, for_service, names, signature = found.groups()
    signed = names.split(";")
    required = {"host", *(name for name in headers if name.startswith("x-amz-"))}
    if signed != sorted(signed) or not required <= set(signed):
        raise SignatureRefused(
            "InvalidSignatureException", f"not all of {sorted(required)} are signed, or not in order"
        )
    if (for_region, for_service) != (region, service):
        raise SignatureRefused(
            "InvalidSignatureException", f"Credential should be scoped to a valid region, not '{for_region}'."
        )
    stamp = headers.get("x-amz-date", "")
    try:
        at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=now.tzinfo)
    except ValueError:
        raise SignatureRefused("IncompleteSignature", f"x-amz-date {stamp!r} is not ISO 8601 basic") from None
    if stamp[:8] != date:
        raise SignatureRefused("InvalidSignatureException", "Date in Credential scope does not match x-amz-date")
    if abs(now - at) > SKEW:
        word = "expired" if at < now else "not yet current"
        raise SignatureRefused("InvalidSignatureException", f"Signature {word}: {stamp} is not close to now")
    secret = secrets.get(access_key)
    if secret is None or headers.get("x-amz-security-token", "") != secret.token:
        text = "The security token included in the request is invalid."
        raise SignatureRefused("UnrecognizedClientException", text)
    if secret.is_over:
        raise SignatureRefused("ExpiredTokenException", "The security token included in the request is expired")
    scope = f"{date}/{for_region}/{for_service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(_canonical(request, signed).encode()).hexdigest()}"
    key = f"AWS4{secret.key}".encode()
    for part in (date, for_region, for_service, "aws4_request", text):
        key = hmac.digest(key, part.encode(), "sha256")
    if not hmac.compare_digest(key.hex(), signature):
        raise SignatureRefused(
            "InvalidSignatureException",
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
            "Access Key and signing method.",
        )
    return access_key


def _canonical(request: HttpRequest, signed: list[str]) -> str:
    query = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(request.query, keep_blank_values=True)
    )
    headers = "".join(f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in signed)
    return "\n".join(
        [
            request.method,
            quote(unquote(request.path), safe="/-_.~") or "/",
            "&".join(f"{name}={value}" for name, value in query),
            headers,
            ";".join(signed),
            hashlib.sha256(request.body).hexdigest(),
        ]
    )
