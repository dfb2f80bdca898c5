"""Rules for the TLS that proxies speak as servers: at gateways and at a Sidecar's ingress."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence

from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettings, ServerTlsSettings
from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettingsTlSmode as ClientMode
from mesh_pilot.api.istio.networking.v1alpha3 import ServerTlsSettingsTlSmode as ServerMode
from mesh_pilot.istio.rules.context import check, check_values, error, warning
from mesh_pilot.istio.rules.names import name_part_reason
from mesh_pilot.model.config import Problem

CIPHERS = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-PSK-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-PSK-AES128-CBC-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES256-SHA",
    "ECDHE-PSK-AES256-CBC-SHA",
    "AES128-GCM-SHA256",
    "AES128-SHA",
    "PSK-AES128-CBC-SHA",
    "AES256-GCM-SHA384",
    "AES256-SHA",
    "PSK-AES256-CBC-SHA",
    "DES-CBC3-SHA",
)
"""The cipher suites of Envoy's BoringSSL, for TLS 1.2 and older."""

CURVES = ("P-256", "P-384", "P-521", "X25519", "X25519MLKEM768")
"""The curves of Envoy's BoringSSL."""

MAX_CREDENTIALS = 2
"""Certificates that Envoy can choose from: one RSA and one ECDSA."""

MAX_ALPN = 255
"""Bytes of an ALPN protocol's name."""

MAX_SNI = 255
"""Bytes of a server name."""

_SHA256_HEX = re.compile(r"[0-9A-Fa-f]{64}")

VERIFYING = (ServerMode.MUTUAL, ServerMode.OPTIONAL_MUTUAL, ServerMode.ISTIO_MUTUAL)
"""Modes that ask for the client's certificate."""

PASSING = (ServerMode.PASSTHROUGH, ServerMode.AUTO_PASSTHROUGH)


def check_server_tls(path: str, tls: ServerTlsSettings) -> Iterator[Problem]:
    """`tls` of a server, for any port."""
    yield from _check_ciphers(path, tls)
    yield from check_curves(path, tls.ecdh_curves)
    yield from check_values(path, tls, _alpn_reason, "alpn_protocols")
    yield from _check_sources(path, tls)
    low, high = tls.min_protocol_version, tls.max_protocol_version
    if low and high and low > high:
        yield error(f"{path}.minProtocolVersion", f"{low.name} is above maxProtocolVersion {high.name}")
    files = {
        "serverCertificate": tls.server_certificate,
        "privateKey": tls.private_key,
        "caCertificates": tls.ca_certificates,
    }
    named = {"credentialName": tls.credential_name, "credentialNames": tls.credential_names}
    lists: dict[str, object] = {"tlsCertificates": tls.tls_certificates}
    handshake = {"ecdhCurves": tls.ecdh_curves, "alpnProtocols": tls.alpn_protocols}
    if tls.mode not in PASSING:
        yield from _check_names(path, {**files, "credentialName": tls.credential_name, "caCrl": tls.ca_crl})
        yield from _check_names(path, {f"credentialNames[{i}]": name for i, name in enumerate(tls.credential_names)})
        yield from _check_names(path, {"caCertCredentialName": tls.ca_cert_credential_name})
    if tls.mode == ServerMode.ISTIO_MUTUAL:
        yield from _check_mesh_certificates(path, tls, {**files, **named, **lists})
    elif tls.mode in PASSING:
        for name, value in {**files, **named, **lists, **handshake}.items():
            if value:
                yield warning(f"{path}.{name}", f"has no effect in mode {tls.mode.name}, which does not terminate TLS")
    else:
        yield from _check_certificates(path, tls)
    if tls.mode in VERIFYING:
        yield from _check_pins(path, tls)


def _check_mesh_certificates(path: str, tls: ServerTlsSettings, refused: Mapping[str, object]) -> Iterator[Problem]:
    reason = "in mode ISTIO_MUTUAL, which uses the mesh's certificates"
    for name, value in refused.items():
        if value:
            yield error(f"{path}.{name}", f"can't be set {reason}")
    idle = {"caCertCredentialName": tls.ca_cert_credential_name, "insecureSkipVerify": tls.insecure_skip_verify}
    for name, value in idle.items():
        if value:
            yield warning(f"{path}.{name}", f"has no effect {reason}")


def _check_pins(path: str, tls: ServerTlsSettings) -> Iterator[Problem]:
    """The hashes that a client's certificate is compared with."""
    for index, pin in enumerate(tls.verify_certificate_spki):
        if not _is_spki(pin):
            reason = "is not the SHA-256 of a public key in base64: 44 characters, as openssl dgst -binary | base64"
            yield error(f"{path}.verifyCertificateSpki[{index}]", reason)
    for index, pin in enumerate(tls.verify_certificate_hash):
        # With colons between the bytes, as openssl prints it, or without any.
        if len(pin) not in (64, 95) or not _SHA256_HEX.fullmatch(pin.replace(":", "")):
            reason = "is not the SHA-256 of a certificate in hexadecimal: 64 digits, or 32 pairs with colons between"
            yield error(f"{path}.verifyCertificateHash[{index}]", reason)


def _is_spki(text: str) -> bool:
    try:
        return len(text) == 44 and len(base64.b64decode(text, validate=True)) == 32
    except (binascii.Error, ValueError):
        return False


def _check_sources(path: str, tls: ServerTlsSettings) -> Iterator[Problem]:
    """Certificates have exactly one source."""
    if tls.mode == ServerMode.ISTIO_MUTUAL:
        return
    sources = {
        "serverCertificate and privateKey": tls.server_certificate and tls.private_key,
        "credentialName": tls.credential_name,
        "credentialNames": tls.credential_names,
        "tlsCertificates": tls.tls_certificates,
    }
    given = [name for name, value in sources.items() if value]
    if len(given) > 1:
        yield error(f"{path}.{given[-1].split()[0]}", f"{given[0]} and {given[-1]} exclude each other")


def check_curves(path: str, curves: Sequence[str]) -> Iterator[Problem]:
    """`ecdhCurves` of a server or of the mesh."""
    for index, curve in enumerate(curves):
        if curve not in CURVES:
            reason = f'"{curve}" is not a known curve; known: {", ".join(CURVES)}'
            yield warning(f"{path}.ecdhCurves[{index}]", reason)


def _alpn_reason(protocol: str) -> str:
    return "" if 0 < len(protocol.encode()) <= MAX_ALPN else f"{protocol[:20]!r} has not 1 to {MAX_ALPN} bytes"


def _check_ciphers(path: str, tls: ServerTlsSettings) -> Iterator[Problem]:
    seen = set()
    for index, cipher in enumerate(tls.cipher_suites):
        here = f"{path}.cipherSuites[{index}]"
        if cipher not in CIPHERS:
            yield warning(here, f'"{cipher}" is not a known cipher suite, ignored; known: {", ".join(CIPHERS)}')
        if cipher in seen:
            yield warning(here, f'"{cipher}" is given twice')
        seen.add(cipher)


def _check_certificates(path: str, tls: ServerTlsSettings) -> Iterator[Problem]:
    """Modes that terminate TLS need certificates: by name, as files, or as a list of files."""
    mode = tls.mode.name
    if len(tls.credential_names) > MAX_CREDENTIALS:
        yield error(f"{path}.credentialNames", f"at most {MAX_CREDENTIALS} are possible, one RSA and one ECDSA")
    if tls.credential_name or tls.credential_names:
        if tls.ca_crl and tls.mode != ServerMode.SIMPLE:
            yield error(f"{path}.caCrl", "can't be combined with credentialName; put the CRL into the credential")
        return
    if tls.tls_certificates:
        yield from _check_certificate_list(path, tls)
    else:
        for name, value in (("serverCertificate", tls.server_certificate), ("privateKey", tls.private_key)):
            if not value:
                yield error(f"{path}.{name}", f"is missing: mode {mode} needs it, or credentialName")
    if tls.mode in (ServerMode.MUTUAL, ServerMode.OPTIONAL_MUTUAL) and not (
        tls.ca_certificates or tls.ca_cert_credential_name
    ):
        yield error(f"{path}.caCertificates", f"is missing: mode {mode} needs it, or credentialName")


def _check_certificate_list(path: str, tls: ServerTlsSettings) -> Iterator[Problem]:
    if bool(tls.server_certificate) != bool(tls.private_key):
        yield error(f"{path}.tlsCertificates", "excludes serverCertificate and privateKey")
    if len(tls.tls_certificates) > MAX_CREDENTIALS:
        yield warning(f"{path}.tlsCertificates", f"has more than {MAX_CREDENTIALS}, one RSA and one ECDSA")
    for index, certificate in enumerate(tls.tls_certificates):
        here = f"{path}.tlsCertificates[{index}]"
        for name, value in (
            ("serverCertificate", certificate.server_certificate),
            ("privateKey", certificate.private_key),
        ):
            yield from check(f"{here}.{name}", name_part_reason(value) if value else "is missing")


def _check_names(path: str, named: Mapping[str, str]) -> Iterator[Problem]:
    """Paths of files and names of credentials, by field: secrets are named after them."""
    for name, value in named.items():
        yield from check(f"{path}.{name}", name_part_reason(value))


def check_client_tls(path: str, tls: ClientTlsSettings) -> Iterator[Problem]:
    """A `tls` of a DestinationRule or of a tracer."""
    files = {
        "clientCertificate": tls.client_certificate,
        "privateKey": tls.private_key,
        "caCertificates": tls.ca_certificates,
        "caCrl": tls.ca_crl,
    }
    named = {"credentialName": tls.credential_name, "caCertCredentialName": tls.ca_cert_credential_name}
    if tls.insecure_skip_verify:
        yield from _check_unverified(path, tls)
    if tls.mode != ClientMode.DISABLE:
        yield from check(f"{path}.sni", _sni_reason(tls.sni))
        yield from _check_names(path, {**files, **named})
    # With credentialName, its roots yield to those of caCertCredentialName; two sources of roots alone contradict.
    if tls.ca_certificates and tls.ca_cert_credential_name and tls.mode in (ClientMode.SIMPLE, ClientMode.MUTUAL):
        yield error(f"{path}.caCertificates", "caCertCredentialName and caCertificates exclude each other")
    if tls.mode in (ClientMode.SIMPLE, ClientMode.MUTUAL) and tls.credential_name:
        for name, value in files.items():
            if value:
                yield error(f"{path}.{name}", f"credentialName and {name} exclude each other")
        return
    if tls.mode == ClientMode.MUTUAL:
        for name in ("clientCertificate", "privateKey"):
            if not files[name]:
                yield error(f"{path}.{name}", "is missing: mode MUTUAL needs it, or credentialName")
    if tls.mode in (ClientMode.ISTIO_MUTUAL, ClientMode.DISABLE):
        for name, value in {**files, **named}.items():
            if value:
                yield warning(f"{path}.{name}", f"has no effect in mode {tls.mode.name}")


def _sni_reason(name: str) -> str:
    if (size := len(name.encode())) > MAX_SNI:
        return f"has {size} bytes, allowed are {MAX_SNI}"
    return "can't have a zero byte" if "\0" in name else ""


def _check_unverified(path: str, tls: ClientTlsSettings) -> Iterator[Problem]:
    """Fields for the verification of the server, which exclude `insecureSkipVerify`."""
    verifying: dict[str, object] = {}
    if tls.mode in (ClientMode.SIMPLE, ClientMode.MUTUAL):
        verifying = {
            "caCertificates": tls.ca_certificates,
            "caCertCredentialName": tls.ca_cert_credential_name,
            "subjectAltNames": tls.subject_alt_names,
        }
    if tls.mode == ClientMode.SIMPLE:
        verifying["credentialName"] = tls.credential_name
    for name, value in verifying.items():
        if value:
            yield error(f"{path}.{name}", f"insecureSkipVerify and {name} exclude each other in mode {tls.mode.name}")
