"""Secrets, as ``istioctl proxy-config secret`` lists them: certificates and roots, never a key."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import attrs

from mesh_pilot.base.reading import as_object, as_objects, as_string
from mesh_pilot.explain.inspection.dump import ConfigDump, DumpedResource, Message
from mesh_pilot.explain.inspection.listings.listing import Listing, Row, listing
from mesh_pilot.model.resource import SECRET

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

COLUMNS = ("RESOURCE NAME", "TYPE", "STATUS", "VALID CERT", "SERIAL NUMBER", "NOT AFTER", "NOT BEFORE")
TRUST_DOMAIN = "TRUST DOMAIN"


@attrs.frozen
class CertificateFacts:
    """The first certificate of a secret, or of one trust domain in it."""

    type: str = ""
    """``CA`` or ``Cert Chain``; empty if there is no certificate that can be read."""
    valid: bool = False
    serial: str = ""
    not_after: str = ""
    not_before: str = ""
    trust_domain: str = ""


def list_secrets(dump: ConfigDump, now: datetime) -> Listing:
    """The secrets in the order of the dump; a row for each trust domain of a bundle with several."""
    found = [(each, facts) for each in dump.of(SECRET) for facts in _facts(each.message, now)]
    with_domain = bool(found) and all(facts.trust_domain for _, facts in found)
    rows = [Row(_cells(each, facts)[: None if with_domain else -1], each) for each, facts in found]
    return listing(dump, (*COLUMNS, *([TRUST_DOMAIN] if with_domain else [])), rows)


def _cells(resource: DumpedResource, facts: CertificateFacts) -> tuple[str, ...]:
    status = "UNINITIALIZED" if resource.version == "uninitialized" else resource.state.upper()
    times = (facts.not_after, facts.not_before)
    return resource.name, facts.type, status, str(facts.valid).lower(), facts.serial, *times, facts.trust_domain


def _facts(secret: Message, now: datetime) -> Iterator[CertificateFacts]:
    """The certificates that a secret shows."""
    context = as_object(secret, "validation_context")
    chain = _pem(as_object(secret, "tls_certificate").get("certificate_chain"))
    if found := chain or _pem(context.get("trusted_ca")):
        yield _certificate(found, now)
        return
    validator = as_object(context, "custom_validator_config", "typed_config")
    domains = as_objects(validator, "trust_domains")
    for each in domains:
        facts = _certificate(_pem(each.get("trust_bundle")), now)
        yield attrs.evolve(facts, trust_domain=as_string(each, "name"))
    if not domains:
        yield CertificateFacts()


def _pem(source: object) -> bytes:
    """The contents of a data source; none if they are in a file."""
    held = as_object(source)
    if text := as_string(held, "inline_string"):
        return text.encode()
    try:
        return base64.b64decode(as_string(held, "inline_bytes"))
    except (binascii.Error, ValueError):
        return b""


def _certificate(pem: bytes, now: datetime) -> CertificateFacts:
    from cryptography import x509

    try:
        found: Certificate = x509.load_pem_x509_certificate(pem)
        return CertificateFacts(
            type="CA" if _is_ca(found) else "Cert Chain",
            valid=found.not_valid_before_utc < now < found.not_valid_after_utc,
            serial=f"{found.serial_number:032x}",
            not_after=_moment(found.not_valid_after_utc),
            not_before=_moment(found.not_valid_before_utc),
            trust_domain=_trust_domain(found),
        )
    except ValueError:
        return CertificateFacts()


def _is_ca(certificate: Certificate) -> bool:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _trust_domain(certificate: Certificate) -> str:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    spiffe = [uri.removeprefix("spiffe://") for uri in uris if uri.startswith("spiffe://")]
    return spiffe[0].partition("/")[0] if spiffe else ""


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
