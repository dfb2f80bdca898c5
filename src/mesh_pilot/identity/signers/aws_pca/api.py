"""Requests to AWS Private CA (API version 2017-08-22, JSON) with Signature Version 4, and what its errors mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx

from mesh_pilot.base.reading import as_string
from mesh_pilot.identity.signers.aws_pca.account import AwsAccount, AwsKeys
from mesh_pilot.identity.signers.aws_pca.settings import SERVICE, AwsPcaSettings
from mesh_pilot.identity.signers.remote import CaError
from mesh_pilot.identity.signers.wire import CaAnswer, CaConnection, one_line
from mesh_pilot.net.rpc import CertificateFiles

_TARGET = "ACMPrivateCA"
_CONTENT_TYPE = "application/x-amz-json-1.1"

IN_PROGRESS = "RequestInProgressException"
_SERVER_ERROR = 500
_DENIED = "AccessDeniedException"
_THROTTLED = ("ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded")
_CREDENTIALS = frozenset(
    (
        *("UnrecognizedClientException", "InvalidClientTokenId", "ExpiredTokenException", "ExpiredToken"),
        *("InvalidSignatureException", "SignatureDoesNotMatch", "IncompleteSignature", "RequestExpired"),
        *("MissingAuthenticationTokenException", "MissingAuthenticationToken", "NotAuthorized"),
    )
)
"""Errors of requests whose credentials or signature AWS does not take: others may be taken."""
_REASONS = {
    _DENIED: "forbidden",
    **dict.fromkeys(_CREDENTIALS, "forbidden"),
    **dict.fromkeys((*_THROTTLED, "ServiceUnavailable", "InternalFailure"), "busy"),
    **dict.fromkeys(("ResourceNotFoundException", "InvalidArnException"), "not_found"),
}
"""Reasons of ``CaError`` by type; of all others: refused."""

_ADVICE = {
    "ResourceNotFoundException": "is certificateAuthorityArn that of a CA in this account, or shared with it?",
    "InvalidArnException": "is certificateAuthorityArn right?",
    "InvalidStateException": "enable or renew the CA (aws acm-pca describe-certificate-authority says its status)",
    "LimitExceededException": "the CA has issued all certificates of its quota: have that raised, or use another CA",
    "RequestFailedException": "AWS could not issue it, and does not say why; it is asked for again with a new key",
}


class AwsError(CaError):
    """An error of the API; ``kind`` is its type, such as ``ThrottlingException``."""

    def __init__(self, kind: str, reason: str, message: str, status: int, *, passes: bool) -> None:
        super().__init__(reason, message, status, passes=passes)
        self.kind = kind


class AwsPcaApi:
    """The API for one CA. State: its URL and connections, made for the first request, and the credentials."""

    def __init__(self, settings: AwsPcaSettings, place: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._settings = settings
        self._place = place
        """``transport`` stands in for the network in tests."""
        self._account = AwsAccount(place, settings.ca)
        self._transport = transport
        self._url = ""
        self._connection: CaConnection | None = None

    def __repr__(self) -> str:
        return f"<AwsPcaApi {self._url or 'not used yet'} {self._account!r}>"

    async def call(self, operation: str, **more: Any) -> Mapping[str, Any]:
        """The answer to an operation on the CA. Raises CaError, AwsError for the API's own."""
        body = json.dumps({"CertificateAuthorityArn": self._settings.arn, **more}).encode()
        keys = await self._account.keys()
        try:
            return await self._asked(operation, body, keys)
        except AwsError as error:
            if error.kind not in _CREDENTIALS:
                raise
            self._account.forget()
            other = await self._account.keys()
            if other == keys:
                raise
            return await self._asked(operation, body, other)

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()

    async def _asked(self, operation: str, body: bytes, keys: AwsKeys) -> Mapping[str, Any]:
        if self._connection is None:
            self._url = f"{self._account.endpoint()}/"
            files = CertificateFiles(trusted=self._account.trusted())
            self._connection = CaConnection(self._place, files, self._transport)
        answer = await self._connection.ask("POST", self._url, body=body, headers=self._signed(operation, body, keys))
        found: object = None
        with suppress(ValueError, RecursionError):
            found = json.loads(answer.body)
        if answer.status == httpx.codes.OK and isinstance(found, dict):
            return found
        raise self._error(operation, answer, found if isinstance(found, dict) else {})

    def _signed(self, operation: str, body: bytes, keys: AwsKeys) -> dict[str, str]:
        """The headers of a request, its signature among them."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        headers = {"content-type": _CONTENT_TYPE, "x-amz-target": f"{_TARGET}.{operation}"}
        request = AWSRequest("POST", self._url, data=body, headers=headers)
        credentials = Credentials(keys.access_key, keys.secret_key, keys.token)
        SigV4Auth(credentials, SERVICE, self._settings.ca.region).add_auth(request)
        return dict(request.headers.items())

    def _error(self, operation: str, answer: CaAnswer, found: Mapping[str, Any]) -> CaError:
        what = f"{self._place}, {operation}"
        kind = as_string(found, "__type").rpartition("#")[2]
        if not kind:
            if answer.status >= _SERVER_ERROR:
                return CaError("busy", f"{what}: {answer.status}", answer.status, passes=True)
            text = f"{what}: {answer.status}, and no answer of AWS: is {self._url} its endpoint?"
            return CaError("answer", text, answer.status)
        said = one_line(as_string(found, "message") or as_string(found, "Message"))
        reason = "busy" if answer.status >= _SERVER_ERROR else _REASONS.get(kind, "refused")
        advice = self._advice(operation, kind, said)
        text = f"{what}: {kind}: {said}".rstrip(": ") + (f"; {advice}" if advice else "")
        return AwsError(kind, reason, text, answer.status, passes=reason == "busy")

    def _advice(self, operation: str, kind: str, said: str) -> str:
        """The step to take after an error; empty if its text says it all."""
        if kind == _DENIED:
            advice = f"allow acm-pca:{operation} on {self._settings.arn} in the IAM policy of this identity"
            if operation == "IssueCertificate":
                advice += f"; a condition on acm-pca:TemplateArn has to allow {self._settings.template_arn}"
            return advice
        if kind in _CREDENTIALS:
            return "set the clock of this machine" if "ignature expired" in said else "renew the AWS credentials"
        return _ADVICE.get(kind, "")
