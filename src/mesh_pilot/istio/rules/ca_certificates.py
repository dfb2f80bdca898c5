"""Rules for ``caCertificates`` of a MeshConfig: roots that are trusted besides those of the mesh's own CA."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from cryptography import x509

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigCertificateData
from mesh_pilot.istio.rules.context import check, check_values, error
from mesh_pilot.istio.rules.names import trust_domain_reason
from mesh_pilot.model.config import Problem


def check_ca_certificates(path: str, data: MeshConfigCertificateData) -> Iterator[Problem]:
    """The problems of one entry at ``path``."""
    if data.pem:
        yield from check(f"{path}.pem", pem_reason(data.pem))
    elif data.spiffe_bundle_url:
        yield from check(f"{path}.spiffeBundleUrl", bundle_url_reason(data.spiffe_bundle_url))
    else:
        yield error(path, "must have pem or spiffeBundleUrl")
    yield from check_values(path, data, trust_domain_reason, "trust_domains")


def pem_reason(pem: str) -> str:
    """The reason why a text is not PEM of CA certificates; empty if it is."""
    if "PRIVATE KEY" in pem:
        return "has a private key, which belongs in no configuration; give only certificates"
    try:
        certificates = x509.load_pem_x509_certificates(pem.encode())
        for certificate in certificates:
            if not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
                return f"has a certificate ({certificate.subject.rfc4514_string()}) that is not a CA's"
    except x509.ExtensionNotFound:
        return "has a certificate that is not a CA's"
    except ValueError:
        return "is not PEM of certificates"
    return ""


def bundle_url_reason(url: str) -> str:
    """The reason why a bundle is not fetched from a URL; empty if it is. As in Istio, the scheme may be left out."""
    try:
        parts = urlsplit(full_bundle_url(url))
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as problem:
        return f"is not a URL: {problem}"
    if parts.username is not None or parts.password is not None:
        return "must not have a user or password"
    if not host:
        return "has no host"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return ""
    return "must be https: over anything else, anyone on the way could have their own root trusted"


def full_bundle_url(url: str) -> str:
    """The URL with its scheme, https by default."""
    return url if "://" in url else f"https://{url}"


def is_loopback(host: str) -> bool:
    """True for a host on this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
