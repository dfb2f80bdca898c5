"""Rules for the TLS that proxies speak as clients."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettings
from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettingsTlSmode as Mode
from mesh_pilot.config.validation.context import error, warning
from mesh_pilot.model.config import Problem


def check_client_tls(path: str, tls: ClientTlsSettings | None) -> Iterator[Problem]:
    """A `tls` of a DestinationRule or of a tracer."""
    if tls is None:
        return
    files = {
        "clientCertificate": tls.client_certificate,
        "privateKey": tls.private_key,
        "caCertificates": tls.ca_certificates,
        "caCrl": tls.ca_crl,
    }
    if tls.insecure_skip_verify:
        yield from _check_unverified(path, tls)
    if tls.mode in (Mode.SIMPLE, Mode.MUTUAL) and tls.credential_name:
        for name, value in files.items():
            if value:
                yield error(f"{path}.{name}", f"credentialName and {name} exclude each other")
        return
    if tls.mode == Mode.MUTUAL:
        for name in ("clientCertificate", "privateKey"):
            if not files[name]:
                yield error(f"{path}.{name}", "is missing: mode MUTUAL needs it, or credentialName")
    if tls.mode in (Mode.ISTIO_MUTUAL, Mode.DISABLE):
        for name, value in {**files, "credentialName": tls.credential_name}.items():
            if value:
                yield warning(f"{path}.{name}", f"has no effect in mode {tls.mode.name}")


def _check_unverified(path: str, tls: ClientTlsSettings) -> Iterator[Problem]:
    """What verifies a server makes no sense where verifying is switched off."""
    verifying: dict[str, object] = {}
    if tls.mode in (Mode.SIMPLE, Mode.MUTUAL):
        verifying = {"caCertificates": tls.ca_certificates, "subjectAltNames": tls.subject_alt_names}
    if tls.mode == Mode.SIMPLE:
        verifying["credentialName"] = tls.credential_name
    for name, value in verifying.items():
        if value:
            yield error(f"{path}.{name}", f"insecureSkipVerify and {name} exclude each other in mode {tls.mode.name}")
