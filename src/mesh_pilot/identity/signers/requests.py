"""Certificate signing requests (CSRs, PKCS #10) of callers: what they may hold, and what is signed of them.

A request proves that its sender has the key. Only that key is signed; the names in the certificate are those of the
authenticated caller. A request that claims other names, or to be a CA, is refused all the same: its sender believes to
be somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from mesh_pilot.identity.signers.signing import SigningError, SigningRequest
from mesh_pilot.identity.trust.callers import TrustDomains
from mesh_pilot.model.spiffe import Identity, parse_identity

MAX_CSR_BYTES = 16 * 1024
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192
MAX_RSA_EXPONENT = 2**32
"""Larger ones make signatures slow to verify."""
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
"""The curves that Envoy takes."""


class SigningRequestError(Exception):
    """A request that is refused: ``reason`` is a stable code for metrics, the text is for the caller's operator."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


CLAIMS = frozenset({"csr_identity", "csr_ca", "csr_impersonation"})
"""The reasons of requests that are well formed, and claim what is not the caller's."""


def new_request(
    key: ec.EllipticCurvePrivateKey, identity: Identity | None = None, dns_names: Iterable[str] = ()
) -> x509.CertificateSigningRequest:
    """A request for a key, with the names that the certificate should have: some CAs know them by nothing else."""
    builder = x509.CertificateSigningRequestBuilder(x509.Name([]))
    names: list[x509.GeneralName] = [] if identity is None else [x509.UniformResourceIdentifier(str(identity))]
    names += [x509.IPAddress(ip_address(each)) if is_address(each) else x509.DNSName(each) for each in dns_names]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)  # without subject
    return builder.sign(key, hashes.SHA256())


def is_address(name: str) -> bool:
    """True for an IP address, False for a DNS name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def read_request(pem: str) -> x509.CertificateSigningRequest:
    """The one request in a string, PEM, if nothing is wrong with it whoever sends it; its signature is not verified.

    Raises SigningRequestError.
    """
    if len(pem) > MAX_CSR_BYTES:
        raise SigningRequestError("csr_size", f"the CSR has {len(pem)} characters; at most {MAX_CSR_BYTES} are read")
    try:
        request = x509.load_pem_x509_csr(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise SigningRequestError("csr_form", "the CSR is not a certificate signing request in PEM") from None
    _check_key(request)
    _check_usage(request)
    return request


def check_claims(request: x509.CertificateSigningRequest, identity: Identity, trust_domains: TrustDomains) -> None:
    """Check that a request is by the key in it, and names its sender or no identity. Raises SigningRequestError."""
    try:
        is_valid = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm):
        is_valid = False
    if not is_valid:
        raise SigningRequestError("csr_signature", "the signature of the CSR is not by its own key")
    for name in _common_names(request):
        if name != identity.service_account and not _is_own(name, identity, trust_domains):
            raise SigningRequestError("csr_identity", f"the CSR has the common name {name!r}; it may have {identity}")
    for extension in request.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            for each in extension.value:
                is_uri = isinstance(each, x509.UniformResourceIdentifier)
                if not is_uri or not _is_own(each.value, identity, trust_domains):
                    claim = f"the CSR names {str(each.value)[:300]!r}; its sender is {identity}"
                    raise SigningRequestError("csr_identity", claim)


def check_names(request: SigningRequest) -> None:
    """Check that the CSR has exactly the names that are asked for. Raises SigningError."""
    wanted = names_of(request)
    try:
        found = [shown_name(name) for name in _alternative_names(request.csr)]
    except ValueError:
        found = []
    if len(found) != len(wanted) or set(found) != wanted:
        # mesh-pilot proxy reads the name from this sentence, and asks again (agent.identity.signing).
        raise SigningError(
            f"the certificate signing request is for {listed(found)}, and this CA takes its names from there: "
            f"name exactly {listed(sorted(wanted))} in it"
        )


def names_of(request: SigningRequest) -> set[tuple[str, str]]:
    """The names that a certificate should have, as ``shown_name`` shows them."""
    wanted = {("IP", str(ip_address(n))) if is_address(n) else ("DNS", n) for n in request.dns_names}
    if request.identity is not None:
        wanted.add(("URI", str(request.identity)))
    return wanted


def shown_name(name: x509.GeneralName) -> tuple[str, str]:
    """The kind of a name, and the name."""
    match name:
        case x509.UniformResourceIdentifier():
            return "URI", name.value
        case x509.DNSName():
            return "DNS", name.value
        case x509.IPAddress():
            return "IP", str(name.value)
    return type(name).__name__, str(name.value)


def listed(names: Sequence[tuple[str, str]]) -> str:
    """Names for people."""
    return ", ".join(f"{kind} {value}" for kind, value in names) or "no name"


def has_names(csr: x509.CertificateSigningRequest) -> bool:
    """True if a CSR names anybody in its extensions."""
    return any(True for _ in _alternative_names(csr))


def _alternative_names(csr: x509.CertificateSigningRequest) -> Iterable[x509.GeneralName]:
    try:
        return csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()


def _check_key(request: x509.CertificateSigningRequest) -> None:
    try:
        key = request.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    match key:
        case rsa.RSAPublicKey():
            if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
                wanted = f"{MIN_RSA_BITS} to {MAX_RSA_BITS} bits are allowed"
                raise SigningRequestError("csr_key", f"the RSA key of the CSR has {key.key_size} bits; {wanted}")
            if key.public_numbers().e > MAX_RSA_EXPONENT:
                raise SigningRequestError("csr_key", "the RSA key of the CSR has an unusual exponent; 65537 is usual")
        case ec.EllipticCurvePublicKey() if isinstance(key.curve, CURVES):
            pass
        case _:
            raise SigningRequestError("csr_key", "the key of the CSR is neither RSA nor of P-256, P-384 or P-521")


def _check_usage(request: x509.CertificateSigningRequest) -> None:
    try:
        extensions = request.extensions
        _common_names(request)
    except (ValueError, TypeError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise SigningRequestError("csr_form", "the subject or the extensions of the CSR cannot be read") from None
    for extension in extensions:
        match extension.value:
            case x509.BasicConstraints(ca=True):
                raise SigningRequestError("csr_ca", "the CSR asks for a CA certificate")
            case x509.KeyUsage(key_cert_sign=True) | x509.KeyUsage(crl_sign=True):
                raise SigningRequestError("csr_ca", "the CSR asks for a key that signs certificates")


def _common_names(request: x509.CertificateSigningRequest) -> list[str]:
    return [str(each.value) for each in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _is_own(name: str, identity: Identity, trust_domains: TrustDomains) -> bool:
    """True if a name is that of the caller, in any of the mesh's trust domains: agents may know an older one."""
    found = parse_identity(name)
    return (
        found is not None
        and found.trust_domain in trust_domains
        and (found.namespace, found.service_account) == (identity.namespace, identity.service_account)
    )
