"""Secrets by name, as SDS asks for them: credentials of gateways and certificate files on the proxy's own disk.

The mesh identity (``default`` and ``ROOTCA``) is not of the World and comes from elsewhere.

Who may have a credential: a proxy with an identity (see ``security.authentication``), and of its own namespace only, as
istiod has it (``filterAuthorizedResources``). A credential from a folder has no namespace: it is for the proxies of a
namespace in which a Gateway or DestinationRule names it.
"""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from mesh_pilot.incremental import derived
from mesh_pilot.mesh.names import (
    CREDENTIAL_PREFIX,
    FILE_CERTIFICATE_PREFIX,
    FILE_ROOTS_PREFIX,
    ROOTS_SUFFIX,
)
from mesh_pilot.mesh.proxy.scope import Workload
from mesh_pilot.model.events import Secret
from mesh_pilot.model.resource import SECRET, Resource, make_resource
from mesh_pilot.world import View


@derived
def secret(view: View, workload: Workload, name: str) -> Resource | None:
    """One secret by the name that Envoy asks for; None where there is none (yet).

    ``file-cert:chain~key`` and ``file-root:file`` name files that Envoy itself reads; ``kubernetes://name`` and
    ``kubernetes://name-cacert`` name a credential that the proxy may have, see ``withheld``.
    """
    if name.startswith(FILE_CERTIFICATE_PREFIX):
        chain, _, key = name.removeprefix(FILE_CERTIFICATE_PREFIX).partition("~")
        return _resource(name, certificate=(_file(chain), _file(key)))
    if name.startswith(FILE_ROOTS_PREFIX):
        return _resource(name, trusted=_file(name.removeprefix(FILE_ROOTS_PREFIX)))
    if not name.startswith(CREDENTIAL_PREFIX) or not workload.scope.certified:
        return None
    namespace = workload.scope.namespace
    credential = name.removeprefix(CREDENTIAL_PREFIX)
    held = _held(view, namespace, credential)
    if held is not None and held.certificate_chain:
        return _resource(name, certificate=(_inline(held.certificate_chain), _inline(held.private_key)))
    if credential.endswith(ROOTS_SUFFIX):
        held = _authorities(view, namespace, credential)
        if held is not None:
            crl = _inline(held.crl) if held.crl else None
            return _resource(name, trusted=_inline(held.ca_certificates), crl=crl)
    return None


def _authorities(view: View, namespace: str, credential: str) -> Secret | None:
    """The credential that holds the CA certificates: one of the ``-cacert`` name itself, else the plain one's."""
    for name in (credential, credential.removesuffix(ROOTS_SUFFIX)):
        held = _held(view, namespace, name)
        if held is not None and held.ca_certificates:
            return held
    return None


def withheld(view: View, workload: Workload, name: str) -> str:
    """Why a proxy does not get a credential that it asks for; empty where it does, or asks for something else."""
    if not name.startswith(CREDENTIAL_PREFIX) or secret.compute(view, workload, name) is not None:
        return ""
    if not workload.scope.certified:
        return "nothing vouches for who the proxy is; let it connect with a client certificate of its own"
    namespace = workload.scope.namespace
    credential = name.removeprefix(CREDENTIAL_PREFIX)
    names = _plain_names(credential)
    if any(_held(view, namespace, plain) for plain in names):
        return "it lacks what is asked for: a certificate with its key, or CA certificates"
    if any(view.secret("", plain) for plain in names):
        return f"it is of no namespace, and no Gateway or DestinationRule in namespace {namespace} names it"
    return f"there is none in namespace {namespace}"


def _held(view: View, namespace: str, name: str) -> Secret | None:
    held = view.secret(namespace, name)
    if held is None and any(view.names_credential(namespace, plain) for plain in _plain_names(name)):
        held = view.secret("", name)
    return held


def _plain_names(credential: str) -> tuple[str, ...]:
    """What ``credentialName`` may say for a secret: its name, and for one with roots the name without the suffix."""
    plain = credential.removesuffix(ROOTS_SUFFIX)
    return (credential,) if plain == credential else (credential, plain)


def _resource(
    name: str,
    *,
    certificate: tuple[base_pb2.DataSource, base_pb2.DataSource] | None = None,
    trusted: base_pb2.DataSource | None = None,
    crl: base_pb2.DataSource | None = None,
) -> Resource:
    message = secret_pb2.Secret(name=name)
    if certificate is not None:
        message.tls_certificate.certificate_chain.CopyFrom(certificate[0])
        message.tls_certificate.private_key.CopyFrom(certificate[1])
    if trusted is not None:
        message.validation_context.trusted_ca.CopyFrom(trusted)
    if crl is not None:
        message.validation_context.crl.CopyFrom(crl)
    return make_resource(name, SECRET, message.SerializeToString(deterministic=True))


def _file(path: str) -> base_pb2.DataSource:
    return base_pb2.DataSource(filename=path)


def _inline(pem: bytes) -> base_pb2.DataSource:
    return base_pb2.DataSource(inline_bytes=pem)
