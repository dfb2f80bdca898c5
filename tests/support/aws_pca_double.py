"""AWS Private CA, as its API reference and user guide describe it, strict about signatures, fields and templates.

double = AwsPcaDouble()
double.transport()                      # for an httpx client
async with serving(double) as port:     # or over TCP

One CA, one account. What the documentation says is refused is refused with the documented error. What it does wrong, if
it should, is that of every ``FakeAuthority``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from typing import Any
from uuid import uuid4

import attrs
import httpx
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from mesh_pilot.net.http.connection import Message
from mesh_pilot.net.http.server import HttpServer
from tests.identity.signers.fake_authority import NOW, FakeAuthority
from tests.support.aws_signature import HttpRequest, Secret, SignatureRefused, verify

REGION, ACCOUNT = "eu-west-1", "111122223333"
ARN = f"arn:aws:acm-pca:{REGION}:{ACCOUNT}:certificate-authority/12345678-1234-1234-1234-123456789012"
USER = f"arn:aws:iam::{ACCOUNT}:user/mesh-pilot"
KEY_ID, SECRET_KEY = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

PEM = serialization.Encoding.PEM
TEMPLATES = {
    f"{base}{variety}/V1"
    for base in ("EndEntityCertificate", "BlankEndEntityCertificate")
    for variety in ("", "_APIPassthrough", "_CSRPassthrough", "_APICSRPassthrough")
} - {"BlankEndEntityCertificate/V1"}
SHORT_LIVED_DAYS = timedelta(days=7)
IDEMPOTENT_FOR = timedelta(minutes=5)
_ARN = re.compile(r"arn:[\w+=/,.@-]+:acm-pca:[\w+=/,.@-]*:[0-9]*:[\w+=,.@-]+(/[\w+=,.@-]+)*")
_USAGES = {"SERVER_AUTH": ExtendedKeyUsageOID.SERVER_AUTH, "CLIENT_AUTH": ExtendedKeyUsageOID.CLIENT_AUTH}
_ALGORITHMS = {f"SHA{bits}WITH{family}": family for bits in (256, 384, 512) for family in ("ECDSA", "RSA")}
_HASHES = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}

_FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "IssueCertificate": (
        {"CertificateAuthorityArn", "Csr", "SigningAlgorithm", "Validity"},
        {"TemplateArn", "ValidityNotBefore", "IdempotencyToken", "ApiPassthrough"},
    ),
    "GetCertificate": ({"CertificateAuthorityArn", "CertificateArn"}, set()),
    "GetCertificateAuthorityCertificate": ({"CertificateAuthorityArn"}, set()),
    "DescribeCertificateAuthority": ({"CertificateAuthorityArn"}, set()),
}
"""Members of each operation's input: required ones, and others."""


class Refused(Exception):
    """An error of the API: its type and message."""

    def __init__(self, kind: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


@attrs.define(eq=False)
class _Issued:
    certificate: x509.Certificate
    chain: list[x509.Certificate]
    polls_left: int
    at: datetime


class AwsPcaDouble(FakeAuthority):
    """State: the CA and its mode, who may do what, how fast it is, and all that was issued and asked."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: NOW) -> None:
        """``now``: the clock of what is issued; signatures go by the real one."""
        super().__init__()
        self._now = now
        self.ends = now() + timedelta(days=700)
        """The end of the CA's certificate, as far as it matters to what is issued."""
        self.status = "ACTIVE"
        self.usage_mode = "GENERAL_PURPOSE"
        self.secrets: dict[str, Secret] = {KEY_ID: Secret(SECRET_KEY)}
        self.allowed = {f"acm-pca:{operation}" for operation in _FIELDS}
        """Actions of the identity-based policy."""
        self.templates_allowed = set(TEMPLATES)
        """By a condition on ``acm-pca:TemplateArn``."""
        self.polls = 1
        """GetCertificate says so many times that the certificate is not there yet."""
        self.fails_to_issue = False
        self.broken = 0
        """So many requests more end with an internal failure."""
        self.issues_per_second = 0.0
        """The quota of IssueCertificate, with as many at once; 0: none."""
        self.bodies: list[dict[str, Any]] = []
        """What was asked, as far as signature and form were right."""
        self.issued: dict[str, _Issued] = {}
        """By ARN."""
        self._tokens: dict[str, str] = {}
        self._allowance = 0.0
        self._filled_at = -1.0

    def transport(self) -> httpx.AsyncBaseTransport:
        """The way of an httpx client to it, without a network."""
        return httpx.MockTransport(self._over_httpx)

    async def _over_httpx(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("connection refused")
        headers = {name.lower(): value for name, value in request.headers.items()}
        path, _, query = request.url.raw_path.decode().partition("?")
        status, body = self.answer(HttpRequest(request.method, path, query, headers, request.content))
        return httpx.Response(status, content=body, headers={"content-type": "application/x-amz-json-1.1"})

    async def __call__(self, scope: Message, receive: Callable[[], Any], send: Callable[[Message], Any]) -> None:
        """As an ASGI application."""
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        query = scope.get("query_string", b"").decode()
        status, said = self.answer(HttpRequest(scope["method"], scope["path"], query, headers, body))
        if self.is_away:
            status, said = 503, b""
        content_type = [(b"content-type", b"application/x-amz-json-1.1")]
        await send({"type": "http.response.start", "status": status, "headers": content_type})
        await send({"type": "http.response.body", "body": said})

    # -- a request

    def answer(self, request: HttpRequest) -> tuple[int, bytes]:
        """Status and body of the answer to a request."""
        try:
            found = self._answered(request)
        except SignatureRefused as error:
            return 400, _error(error.kind, str(error))
        except Refused as error:
            return error.status, _error(error.kind, str(error))
        return 200, json.dumps(found).encode()

    def _answered(self, request: HttpRequest) -> dict[str, Any]:
        operation = request.headers.get("x-amz-target", "").removeprefix("ACMPrivateCA.")
        self.asked.append(operation)
        verify(request, self.secrets, region=REGION, service="acm-pca", now=datetime.now(UTC))
        if request.method != "POST" or request.path != "/" or request.query:
            raise Refused("UnknownOperationException", "requests are POST /", 404)
        if request.headers.get("content-type") != "application/x-amz-json-1.1" or operation not in _FIELDS:
            raise Refused("UnknownOperationException", f"there is no operation {operation!r}", 404)
        if self.broken:
            self.broken -= 1
            raise Refused("InternalFailure", "The request processing has failed because of an unknown error.", 500)
        if not self._admits(operation):
            raise Refused("ThrottlingException", "Rate exceeded")
        body = self._body(request.body, operation)
        self.bodies.append(body)
        self._check_access(operation, body)
        if body["CertificateAuthorityArn"] != ARN:
            raise Refused("ResourceNotFoundException", f"Could not find Certificate Authority: {body}")
        match operation:
            case "IssueCertificate":
                return self._issue(body)
            case "GetCertificate":
                return self._get(body)
            case "DescribeCertificateAuthority":
                return {"CertificateAuthority": self._described()}
        if self.status not in ("ACTIVE", "DISABLED", "EXPIRED"):
            raise Refused("InvalidStateException", f"The certificate authority {ARN} is not in the correct state")
        above = {"CertificateChain": _pem(*(root.certificate for root in self.chain))} if self.chain else {}
        return {"Certificate": _pem(self.issuers[-1].certificate), **above}

    def _admits(self, operation: str) -> bool:
        if operation != "IssueCertificate":
            return True
        if self.busy:
            self.busy -= 1
            return False
        if not self.issues_per_second:
            return True
        now = trio.current_time()
        if self._filled_at < 0:
            self._filled_at, self._allowance = now, self.issues_per_second
        self._allowance += (now - self._filled_at) * self.issues_per_second
        self._allowance, self._filled_at = min(self._allowance, self.issues_per_second), now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _body(self, text: bytes, operation: str) -> dict[str, Any]:
        try:
            body = json.loads(text)
        except ValueError:
            raise Refused("SerializationException", "the body is not JSON") from None
        required, optional = _FIELDS[operation]
        _fields(body, operation, required, optional)
        for name in ("CertificateAuthorityArn", "CertificateArn", "TemplateArn"):
            if name in body and not (_ARN.fullmatch(body[name]) and len(body[name]) <= 200):
                raise Refused("InvalidArnException", f"{body[name]} is not an ARN of acm-pca")
        return dict(body)

    def _check_access(self, operation: str, body: Mapping[str, Any]) -> None:
        action = f"acm-pca:{operation}"
        template = body.get("TemplateArn", "template/EndEntityCertificate/V1").partition("template/")[2]
        is_issuing = operation == "IssueCertificate"
        if action in self.allowed and not is_issuing:
            return
        if action in self.allowed and template in self.templates_allowed and not self.is_forbidden:
            return
        raise Refused(
            "AccessDeniedException",
            f"User: {USER} is not authorized to perform: {action} on resource: {ARN} because no identity-based policy "
            f"allows the {action} action",
        )

    def _described(self) -> dict[str, Any]:
        return {
            "Arn": ARN,
            "OwnerAccount": ACCOUNT,
            "Type": "SUBORDINATE" if self.chain else "ROOT",
            "Status": self.status,
            "NotAfter": self.ends.timestamp(),
            "UsageMode": self.usage_mode,
            "CertificateAuthorityConfiguration": {"KeyAlgorithm": "EC_prime256v1", "Subject": {}},
        }

    # -- certificates

    def _get(self, body: Mapping[str, Any]) -> dict[str, Any]:
        found = self.issued.get(body["CertificateArn"])
        if found is None:
            raise Refused("ResourceNotFoundException", f"Could not find certificate {body['CertificateArn']}")
        if self.fails_to_issue:
            text = f"Certificate {body['CertificateArn']} is in a failed state."
            raise Refused("RequestFailedException", text)
        if found.polls_left:
            found.polls_left -= 1
            raise Refused("RequestInProgressException", "The certificate is in the process of being issued")
        return {"Certificate": _pem(found.certificate), "CertificateChain": _pem(*found.chain)}

    def _issue(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.status != "ACTIVE":
            text = f"The certificate authority {ARN} is not in the correct state to issue a certificate: {self.status}"
            raise Refused("InvalidStateException", text)
        token = body.get("IdempotencyToken", "")
        if not re.fullmatch(r"[\t\n\r -ÿ]{0,36}", token):
            raise Refused("ValidationException", "IdempotencyToken has at most 36 characters")
        known = self._tokens.get(token)
        if known is not None and self._now() - self.issued[known].at < IDEMPOTENT_FOR:
            return {"CertificateArn": known}
        certificate = self._signed(body)
        arn = f"{ARN}/certificate/{certificate.serial_number}"
        self.issued[arn] = _Issued(certificate, self.chain_above, self.polls, self._now())
        if token:
            self._tokens[token] = arn
        return {"CertificateArn": arn}

    def _signed(self, body: Mapping[str, Any]) -> x509.Certificate:
        csr = _csr(body["Csr"])
        template = body.get("TemplateArn", "arn:aws:acm-pca:::template/EndEntityCertificate/V1")
        name = template.removeprefix("arn:aws:acm-pca:::template/")
        if name not in TEMPLATES:
            raise Refused("InvalidArgsException", f"there is no template {template}")
        variety = name.partition("_")[2].partition("/")[0]
        api = _passthrough(body.get("ApiPassthrough", {})) if "API" in variety else ([], None, [])
        signer = self.issuer
        begins, ends = self._period(body)
        builder = (
            x509.CertificateBuilder()
            .subject_name(csr.subject)
            .issuer_name(signer.name)
            .public_key(self.key or csr.public_key())  # type: ignore[arg-type]
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends if self.lifetime is None else self._now() + self.lifetime)
            .add_extension(x509.BasicConstraints(ca=self.is_ca, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(csr.public_key()), critical=False)
        )
        names, key_usage, usages = api
        if not names:  # of the CSR in every other case, whatever the variety
            names = list(_extension(csr, x509.SubjectAlternativeName) or ())
        if name.startswith("EndEntity"):
            key_usage = _key_usage({"DigitalSignature": True, "KeyEncipherment": True})
            usages = list(_USAGES.values())
        elif "CSR" in variety:
            key_usage = key_usage or _extension(csr, x509.KeyUsage)
            usages = usages or list(_extension(csr, x509.ExtendedKeyUsage) or ())
        if names := list(self.names(names)):
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not csr.subject)
        if key_usage is not None:
            builder = builder.add_extension(key_usage, critical=True)
        if len(self.usages) < 2:
            usages = self.usages
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        algorithm = body["SigningAlgorithm"]
        family = "RSA" if isinstance(self.issuers[-1].key, rsa.RSAPrivateKey) else "ECDSA"
        if _ALGORITHMS.get(algorithm) != family:
            text = f"SigningAlgorithm {algorithm} does not match the CA's key algorithm"
            raise Refused("InvalidArgsException", text)
        return builder.sign(signer.key, _HASHES[algorithm[3:6]]())

    def _period(self, body: Mapping[str, Any]) -> tuple[datetime, datetime]:
        now = self._now()
        begins = now - timedelta(minutes=60)
        if "ValidityNotBefore" in body:
            if body["ValidityNotBefore"].get("Type") != "ABSOLUTE":
                raise Refused("InvalidArgsException", "ValidityNotBefore is of type ABSOLUTE")
            begins = _end(body["ValidityNotBefore"], now)
        ends = _end(body["Validity"], now)
        if ends <= now:
            raise Refused("ValidationException", "The certificate validity end is in the past")
        if ends > self.ends:
            text = "The certificate validity specified exceeds the certificate authority validity"
            raise Refused("ValidationException", text)
        if self.usage_mode == "SHORT_LIVED_CERTIFICATE" and ends > now + SHORT_LIVED_DAYS:
            text = "Certificates of a CA in SHORT_LIVED_CERTIFICATE mode are valid for at most 7 days"
            raise Refused("ValidationException", text)
        return begins, ends


@asynccontextmanager
async def serving(app: Callable[..., Any]) -> AsyncIterator[int]:
    """The port of a double of this kind on loopback, for the length of the block."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(HttpServer(app).serve, listeners, trio.Event(), grace_seconds=0))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


# -- what is in a request


def _fields(found: object, where: str, required: set[str], optional: set[str]) -> None:
    if not isinstance(found, dict):
        raise Refused("SerializationException", f"{where} is not a structure")
    if missing := sorted(required - found.keys()):
        raise Refused("ValidationException", f"Value null at {where}.{missing[0]} failed to satisfy constraint")
    if unknown := sorted(found.keys() - required - optional):
        raise Refused("SerializationException", f"{where} has no member {unknown[0]}")


def _csr(text: object) -> x509.CertificateSigningRequest:
    try:
        pem = base64.b64decode(str(text), validate=True)
        csr = x509.load_pem_x509_csr(pem)
        names = _extension(csr, x509.SubjectAlternativeName)
        is_signed = csr.is_signature_valid
    except (ValueError, binascii.Error):
        raise Refused("MalformedCSRException", "The CSR is not PEM in base64") from None
    if len(pem) > 32768 or not is_signed:
        raise Refused("MalformedCSRException", "The CSR is too long, or not signed by its key")
    if not csr.subject:
        if names is None:
            raise Refused("MalformedCSRException", "The CSR must provide a subject name or a subject alternative name")
        if not csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical:
            text = "CSR must mark the SAN extension critical when it has an empty subject"
            raise Refused("MalformedCSRException", text)
    return csr


def _extension(csr: x509.CertificateSigningRequest, kind: type[Any]) -> Any:
    try:
        return csr.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _passthrough(
    given: object,
) -> tuple[list[x509.GeneralName], x509.KeyUsage | None, list[x509.ObjectIdentifier]]:
    """Names, key usage and extended key usages of an ApiPassthrough."""
    _fields(given, "ApiPassthrough", set(), {"Extensions", "Subject"})
    assert isinstance(given, dict)
    extensions = given.get("Extensions", {})
    known = {"SubjectAlternativeNames", "KeyUsage", "ExtendedKeyUsage", "CertificatePolicies", "CustomExtensions"}
    _fields(extensions, "Extensions", set(), known)
    names = [_general_name(each) for each in extensions.get("SubjectAlternativeNames", ())]
    if "SubjectAlternativeNames" in extensions and not 1 <= len(names) <= 150:
        raise Refused("ValidationException", "SubjectAlternativeNames has 1 to 150 members")
    usages = []
    for each in extensions.get("ExtendedKeyUsage", ()):
        _fields(each, "ExtendedKeyUsage", set(), {"ExtendedKeyUsageType", "ExtendedKeyUsageObjectIdentifier"})
        usages.append(_USAGES[each["ExtendedKeyUsageType"]])
    key_usage = _key_usage(extensions["KeyUsage"]) if "KeyUsage" in extensions else None
    return names, key_usage, usages


def _general_name(given: object) -> x509.GeneralName:
    lengths = {"UniformResourceIdentifier": 253, "DnsName": 253, "IpAddress": 39}
    _fields(given, "GeneralName", set(), set(lengths))
    assert isinstance(given, dict)
    if len(given) != 1:
        raise Refused("InvalidArgsException", "a GeneralName has one member")
    ((kind, value),) = given.items()
    if not isinstance(value, str) or len(value) > lengths[kind]:
        raise Refused("ValidationException", f"{kind} has at most {lengths[kind]} characters")
    match kind:
        case "UniformResourceIdentifier":
            return x509.UniformResourceIdentifier(value)
        case "DnsName":
            return x509.DNSName(value)
    return x509.IPAddress(ip_address(value))


def _key_usage(given: object) -> x509.KeyUsage:
    words = {
        "DigitalSignature": "digital_signature",
        "NonRepudiation": "content_commitment",
        "KeyEncipherment": "key_encipherment",
        "DataEncipherment": "data_encipherment",
        "KeyAgreement": "key_agreement",
        "KeyCertSign": "key_cert_sign",
        "CRLSign": "crl_sign",
        "EncipherOnly": "encipher_only",
        "DecipherOnly": "decipher_only",
    }
    _fields(given, "KeyUsage", set(), set(words))
    assert isinstance(given, dict)
    return x509.KeyUsage(**{word: given.get(name) is True for name, word in words.items()})


def _end(given: object, now: datetime) -> datetime:
    _fields(given, "Validity", {"Value", "Type"}, set())
    assert isinstance(given, dict)
    value = given["Value"]
    if not isinstance(value, int) or value < 1:
        raise Refused("ValidationException", "Value is a positive long")
    match given["Type"]:
        case "ABSOLUTE":
            return datetime.fromtimestamp(value, UTC)
        case "DAYS":
            return now + timedelta(days=value)
        case "END_DATE":
            return datetime.strptime(str(value), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    raise Refused("ValidationException", f"Type {given['Type']} is not one of the enum")


def _pem(*certificates: x509.Certificate) -> str:
    return "\n".join(each.public_bytes(PEM).decode().strip() for each in certificates)


def _error(kind: str, message: str) -> bytes:
    return json.dumps({"__type": f"com.amazonaws.acmpca#{kind}", "message": message, "id": str(uuid4())}).encode()
