"""TLS of a listener, as the TLS of an Istio Gateway's server.

A reference to another namespace is checked against the ReferenceGrants before anything is said about its target, so
that a status never tells whether an object exists that its reader may not know of.
"""

from __future__ import annotations

from collections.abc import Iterable

from mesh_pilot.api.istio.networking import v1alpha3 as networking
from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.gateway_api.conditions import Fault
from mesh_pilot.istio.gateway_api.values import Objects
from mesh_pilot.istio.rules.tls import CIPHERS
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Secret
from mesh_pilot.model.service import DEFAULT_GATEWAY_PORT, GATEWAY_PORT_LABEL, NETWORK_LABEL

TlsMode = networking.ServerTlsSettingsTlSmode

TERMINATE_MODE = "gateway.istio.io/tls-terminate-mode"
CIPHER_SUITES = "gateway.istio.io/tls-cipher-suites"
LISTENER_PROTOCOL = "gateway.istio.io/listener-protocol"
"""Options of a listener's TLS."""

GATEWAY_CREDENTIAL = "kubernetes-gateway://"
CA_CONFIG_MAP = "configmap://"
"""Beginnings of credential names: a Secret, ``kubernetes-gateway://namespace/name``; the CA certificates of a
ConfigMap."""

BAD_CERTIFICATE = "InvalidCertificateRef"
BAD_CA_CERTIFICATE = "InvalidCACertificateRef"
BAD_CA_KIND = "InvalidCACertificateKind"
NOT_PERMITTED = "RefNotPermitted"
BAD_CLIENT_CERTIFICATE = "InvalidClientCertificateRef"
"""Reasons, of the Gateway API."""

REFUSED = "the present version is not valid"
"""Said of a credential that is refused; the log and the pages have the reason."""

_MAX_CERTIFICATES = 2


class CredentialRefs:
    """The references of a Gateway or ListenerSet to Secrets and ConfigMaps, with those that it may have."""

    def __init__(self, owner: Config, written: str, objects: Objects) -> None:
        """``written``: its kind as written."""
        self._owner = owner
        self._written = written
        self._objects = objects
        self.granted: set[tuple[str, str]] = set()
        """Namespaces and names of the credentials that it refers to, and may have."""

    def _may_refer(self, kind: str, namespace: str, name: str) -> bool:
        own = self._owner.namespace
        if namespace != own and not self._objects.is_granted(self._written, own, kind, namespace, name):
            return False
        self.granted.add((namespace, name))
        return True

    def _forbidden(self, what: str, name: str) -> Fault:
        return Fault(
            NOT_PERMITTED,
            f'{what} {name} not accessible to a Gateway in namespace "{self._owner.namespace}"'
            " (missing a ReferenceGrant?)",
        )

    def certificate(self, ref: api.SecretObjectReference) -> str | Fault:
        """The credential of a certificate with its key."""
        namespace = _namespace(ref.namespace, self._owner)
        if not self._may_refer("Secret", namespace, ref.name):
            return self._forbidden("certificateRef", f"{ref.name}/{namespace}")
        reason = certificate_problem(self._objects, ref, namespace)
        if reason:
            return Fault(BAD_CERTIFICATE, f"invalid certificate reference {_written_secret(ref)}, {reason}")
        return f"{GATEWAY_CREDENTIAL}{namespace}/{ref.name}"

    def ca_certificates(self, ref: api.ObjectReference) -> str | Fault:
        """The credential of CA certificates, by its resource's name without the suffix for roots."""
        namespace = _namespace(ref.namespace, self._owner)
        kind = "Secret" if (ref.group or "", ref.kind) == ("", "Secret") else "ConfigMap"
        if not self._may_refer(kind, namespace, ref.name):
            return self._forbidden("caCertificateRef", f"{namespace}/{ref.name}")
        # The messages are istiod's word for word: people search for them.
        written = f"{ref.group or ''}/{ref.kind}/{ref.name}.{ref.namespace or ''}"
        found: Secret | None
        match (ref.group or "", ref.kind):
            case ("", "ConfigMap"):
                found, prefix = self._objects.ca_config_map(namespace, ref.name), CA_CONFIG_MAP
            case ("", "Secret"):
                found, prefix = self._objects.secret(namespace, ref.name), GATEWAY_CREDENTIAL
            case _:
                reason = "only secret and configmap are allowed"
                return Fault(BAD_CA_KIND, f"invalid CA certificate reference {written}, {reason}")
        if found is None:
            reason = f"{ref.kind.lower()} {namespace}/{ref.name} not found"
        elif found.is_outdated:
            reason = f"{ref.kind.lower()} {namespace}/{ref.name}: {REFUSED}"
        elif not found.ca_certificates:
            reason = "found no CA certificates, expected ca.crt"
        elif not is_pem(found.ca_certificates):
            reason = "the bundle is malformed"
        else:
            return f"{prefix}{namespace}/{ref.name}"
        return Fault(BAD_CA_CERTIFICATE, f"invalid CA certificate reference {written}, {reason}")

    def client_certificate(self, ref: api.SecretObjectReference) -> str | Fault:
        """The credential of the certificate that the Gateway shows to backends."""
        namespace = _namespace(ref.namespace, self._owner)
        if not self._may_refer("Secret", namespace, ref.name):
            return self._forbidden("clientCertificateRef", f"{ref.name}/{namespace}")
        reason = certificate_problem(self._objects, ref, namespace)
        if reason:
            return Fault(BAD_CLIENT_CERTIFICATE, f"invalid clientCertificateRef {_written_secret(ref)}, {reason}")
        return f"{GATEWAY_CREDENTIAL}{namespace}/{ref.name}"


def certificate_problem(objects: Objects, ref: api.SecretObjectReference, namespace: str) -> str:
    """The reason why a reference is to no certificate with a key; empty if it is."""
    if (ref.group or "", ref.kind or "Secret") != ("", "Secret"):
        return "only secret is allowed"
    found = objects.secret(namespace, ref.name)
    if found is None:
        return f"secret {namespace}/{ref.name} not found"
    if found.is_outdated:
        return f"secret {namespace}/{ref.name}: {REFUSED}"
    if not found.certificate_chain or not found.private_key:
        return "found secret, but didn't have expected keys (cert and key) or (tls.crt and tls.key)"
    if not is_pem(found.certificate_chain):
        return "the certificate is malformed: tls: failed to find any PEM data in certificate input"
    return ""


def is_pem(text: bytes) -> bool:
    return b"-----BEGIN" in text


def frontend_validation(spec: api.GatewaySpec, port: int) -> api.FrontendTlsValidation | None:
    """The check of clients' certificates on a port of a Gateway."""
    frontend = spec.tls.frontend if spec.tls is not None else None
    if frontend is None:
        return None
    own = next((each.tls for each in frontend.per_port if each.port == port), frontend.default)
    return own.validation if own is not None else None


def is_auto_passthrough(owner: Config, listener: api.Listener) -> bool:
    """True if a passthrough listener is for traffic between networks."""
    if listener.tls is not None and listener.tls.options.get(LISTENER_PROTOCOL) == "auto-passthrough":
        return True
    if NETWORK_LABEL not in owner.labels:
        return False
    return str(listener.port) == owner.labels.get(GATEWAY_PORT_LABEL, str(DEFAULT_GATEWAY_PORT))


def server_tls(
    tls: api.ListenerTlsConfig, validation: api.FrontendTlsValidation | None, refs: CredentialRefs, *, auto: bool
) -> tuple[networking.ServerTlsSettings, Fault | None]:
    """The TLS of a server, and what is wrong with it. ``auto``: passthrough is for traffic between networks."""
    out = networking.ServerTlsSettings()
    if (tls.mode or "Terminate") == "Terminate":
        fault = _terminate(out, tls, validation, refs)
        if fault is not None or out.mode is TlsMode.ISTIO_MUTUAL or out.credential_name == "builtin://":
            return out, fault
    else:
        out.mode = TlsMode.AUTO_PASSTHROUGH if auto else TlsMode.PASSTHROUGH
    wanted = (word.strip() for word in tls.options.get(CIPHER_SUITES, "").split(","))
    out.cipher_suites = list(dict.fromkeys(cipher for cipher in wanted if cipher in CIPHERS))
    return out, None


def _terminate(
    out: networking.ServerTlsSettings,
    tls: api.ListenerTlsConfig,
    validation: api.FrontendTlsValidation | None,
    refs: CredentialRefs,
) -> Fault | None:
    # Istio's options of a listener and the Gateway API's validation both set the mode; an option wins, and decides what
    # a client without a certificate gets. A listener with one usable certificate of two is served with that.
    mode = tls.options.get(TERMINATE_MODE, "")
    out.mode = {"MUTUAL": TlsMode.MUTUAL, "OPTIONAL_MUTUAL": TlsMode.OPTIONAL_MUTUAL}.get(mode, TlsMode.SIMPLE)
    if mode == "ISTIO_SIMPLE":
        out.credential_name = "builtin://"
        return None
    if mode == "ISTIO_MUTUAL":
        out.mode = TlsMode.ISTIO_MUTUAL
        return None
    if len(tls.certificate_refs) > _MAX_CERTIFICATES:
        return Fault(BAD_CERTIFICATE, "TLS mode can only support up to 2 server certificates")
    found = [refs.certificate(ref) for ref in tls.certificate_refs]
    names = [name for name in found if isinstance(name, str)]
    if not names:
        return _joined(fault for fault in found if isinstance(fault, Fault))
    if len(names) == 1:
        out.credential_name = names[0]
    else:
        out.credential_names = names
    if validation is None or not validation.ca_certificate_refs:
        return None
    if len(validation.ca_certificate_refs) > 1:
        return Fault(BAD_CA_CERTIFICATE, "only one caCertificateRef is supported")
    roots = refs.ca_certificates(validation.ca_certificate_refs[0])
    if isinstance(roots, Fault):
        return roots
    out.ca_cert_credential_name = f"{roots}-cacert"
    fallback = validation.mode == "AllowInsecureFallback"
    if mode in ("MUTUAL", "OPTIONAL_MUTUAL"):
        fallback = False
    else:
        out.mode = TlsMode.OPTIONAL_MUTUAL if fallback else TlsMode.MUTUAL
    out.insecure_skip_verify = fallback
    return None


def _joined(faults: Iterable[Fault]) -> Fault | None:
    joined = None
    for fault in faults:
        joined = fault if joined is None else joined.and_(fault)
    return joined


def _namespace(written: str | None, owner: Config) -> str:
    return owner.namespace if written is None else written


def _written_secret(ref: api.SecretObjectReference) -> str:
    return f"{ref.group or ''}/{ref.kind or 'Secret'}/{ref.name}.{ref.namespace or ''}"
