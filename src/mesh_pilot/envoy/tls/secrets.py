"""Secrets (SDS) of a workload by name: credentials of gateways, and certificate files on the proxy's own disk.

The mesh identity (``default`` and ``ROOTCA``) does not come from the World: see ``security.secrets``.

A proxy gets a credential of its own namespace if it has an identity (see ``security.authentication``), as in istiod
(``filterAuthorizedResources``). A credential from a folder has no namespace: it is for the proxies of namespaces in
which a Gateway or DestinationRule names it.
"""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2

from mesh_pilot.incremental import derived
from mesh_pilot.mesh.names import (
    CREDENTIAL_PREFIX,
    FILE_CERTIFICATE_PREFIX,
    FILE_ROOTS_PREFIX,
    ROOTS_SUFFIX,
)
from mesh_pilot.mesh.proxy.scope import Workload
from mesh_pilot.model.events import Secret
from mesh_pilot.model.resource import Resource
from mesh_pilot.security.secrets import inline, secret_resource
from mesh_pilot.world import View


@derived
def workload_secret(view: View, workload: Workload, name: str) -> Resource | None:
    """One secret by the name that Envoy requests; None if there is none (yet).

    ``file-cert:chain~key`` and ``file-root:file`` name files that Envoy reads itself; ``kubernetes://name`` and
    ``kubernetes://name-cacert`` name a credential, which the proxy gets unless it is ``withheld``.
    """
    if name.startswith(FILE_CERTIFICATE_PREFIX):
        chain, _, key = name.removeprefix(FILE_CERTIFICATE_PREFIX).partition("~")
        return secret_resource(name, certificate=(_file(chain), _file(key)))
    if name.startswith(FILE_ROOTS_PREFIX):
        return secret_resource(name, trusted_ca=_file(name.removeprefix(FILE_ROOTS_PREFIX)))
    if not name.startswith(CREDENTIAL_PREFIX) or not workload.scope.certified:
        return None
    namespace = workload.scope.namespace
    credential = name.removeprefix(CREDENTIAL_PREFIX)
    found = _credential(view, namespace, credential)
    if found is not None and found.certificate_chain:
        return secret_resource(name, certificate=(inline(found.certificate_chain), inline(found.private_key)))
    if credential.endswith(ROOTS_SUFFIX):
        found = _ca_credential(view, namespace, credential)
        if found is not None:
            crl = inline(found.crl) if found.crl else None
            return secret_resource(name, trusted_ca=inline(found.ca_certificates), crl=crl)
    return None


def _ca_credential(view: View, namespace: str, credential: str) -> Secret | None:
    """The credential with the CA certificates: the one of the ``-cacert`` name, else that of the plain name."""
    for name in (credential, credential.removesuffix(ROOTS_SUFFIX)):
        found = _credential(view, namespace, name)
        if found is not None and found.ca_certificates:
            return found
    return None


def withheld(view: View, workload: Workload, name: str) -> str:
    """The reason why a proxy does not get a credential that it requests; empty if it does, or for other secrets."""
    if not name.startswith(CREDENTIAL_PREFIX) or workload_secret.compute(view, workload, name) is not None:
        return ""
    if not workload.scope.certified:
        return "nothing vouches for who the proxy is; let it connect with a client certificate of its own"
    namespace = workload.scope.namespace
    credential = name.removeprefix(CREDENTIAL_PREFIX)
    names = _plain_names(credential)
    if any(_credential(view, namespace, plain) for plain in names):
        return "it lacks what is asked for: a certificate with its key, or CA certificates"
    if any(view.secret("", plain) for plain in names):
        return f"it is of no namespace, and no Gateway or DestinationRule in namespace {namespace} names it"
    return f"there is none in namespace {namespace}"


def _credential(view: View, namespace: str, name: str) -> Secret | None:
    """The credential of a name for a namespace: its own, else one without namespace that the namespace may use."""
    found = view.secret(namespace, name)
    if found is None and any(view.names_credential(namespace, plain) for plain in _plain_names(name)):
        found = view.secret("", name)
    return found


def _plain_names(credential: str) -> tuple[str, ...]:
    """The values of ``credentialName`` that refer to a secret: its name, and without the suffix of roots."""
    plain = credential.removesuffix(ROOTS_SUFFIX)
    return (credential,) if plain == credential else (credential, plain)


def _file(path: str) -> base_pb2.DataSource:
    return base_pb2.DataSource(filename=path)
