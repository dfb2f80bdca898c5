"""Secrets (SDS) of a workload by name: credentials of gateways, and certificate files on the proxy's own disk.

The mesh identity (``default`` and ``ROOTCA``) does not come from the World: see ``identity.certificates.secrets``.

A credential's private key is for the gateways of its namespace that have an identity (see
``identity.authenticators.authentication``), and for whom its grants name. CA certificates are not secret: they are for
all proxies of these namespaces. A Secret in Kubernetes is *guarded*: as in istiod (``filterAuthorizedResources``), the
proxy's service account must be allowed to read Secrets there, which its source says by grants, or a Gateway of the
Gateway API must refer to it.
"""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2

from mesh_pilot.engine import derived
from mesh_pilot.identity.certificates.secrets import inline, secret_resource
from mesh_pilot.mesh.names.resources import (
    CA_CONFIG_MAP_PREFIX,
    CONNECT_CALLER_SECRET,
    CONNECT_PREFIX,
    CONNECT_ROOTS_SECRET,
    CONNECT_SERVICE_PREFIX,
    CREDENTIAL_PREFIX,
    CREDENTIAL_PREFIXES,
    FILE_CERTIFICATE_PREFIX,
    FILE_ROOTS_PREFIX,
    GATEWAY_CREDENTIAL_PREFIX,
    ROOTS_SUFFIX,
    SYSTEM_ROOTS_SECRET,
)
from mesh_pilot.mesh.proxy.scope import Workload
from mesh_pilot.model.connect import CONNECT_ROOTS, connect_caller, connect_leaf
from mesh_pilot.model.events import Grant, Secret
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.spiffe import parse_identity
from mesh_pilot.world import View
from mesh_pilot.world.gateway_reads import CONFIG_MAP

_ANSWERED = (*CREDENTIAL_PREFIXES, CONNECT_PREFIX)

NO_SYSTEM_ROOTS = (
    "the proxy's machine has no CA certificates, so that it refuses servers of rules that name none; "
    "install them (package ca-certificates) and restart its agent, or set caCertificates"
)


@derived
def workload_secret(view: View, workload: Workload, name: str) -> Resource | None:
    """One secret by the name that Envoy requests; None if there is none (yet).

    ``file-cert:chain~key`` and ``file-root:file`` name files that Envoy reads itself, ``file-root:system`` that of its
    operating system; ``kubernetes://name`` and ``kubernetes://name-cacert`` name a credential, which the proxy gets
    unless it is ``withheld``.
    """
    if name.startswith(FILE_CERTIFICATE_PREFIX):
        chain, _, key = name.removeprefix(FILE_CERTIFICATE_PREFIX).partition("~")
        return secret_resource(name, certificate=(_file(chain), _file(key)))
    if name == SYSTEM_ROOTS_SECRET:
        return secret_resource(name, trusted_ca=_file(workload.system_roots)) if workload.system_roots else None
    if name.startswith(FILE_ROOTS_PREFIX):
        return secret_resource(name, trusted_ca=_file(name.removeprefix(FILE_ROOTS_PREFIX)))
    if not name.startswith(_ANSWERED):
        return None
    answer = _answer(view, workload, name)
    return None if isinstance(answer, str) else answer


def withheld(view: View, workload: Workload, name: str) -> str:
    """Why a proxy does not get a credential or its system's roots; empty if it does, and for other secrets."""
    if name == SYSTEM_ROOTS_SECRET and not workload.system_roots:
        return NO_SYSTEM_ROOTS
    answer = _answer(view, workload, name) if name.startswith(_ANSWERED) else ""
    return answer if isinstance(answer, str) else ""


def _answer(view: View, workload: Workload, name: str) -> Resource | str:
    """The secret of a credential, or the reason why the proxy does not get it."""
    scope = workload.scope
    if not scope.certified:
        return "nothing vouches for who the proxy is; let it connect with its own client certificate"
    # Who asks is judged before what there is, roots before keys: a namespace may have the roots of a credential and not
    # its key, and the reason must not tell a stranger more than that.
    if name.startswith(CA_CONFIG_MAP_PREFIX):
        return _config_map(view, name)
    if name.startswith(CONNECT_PREFIX):
        return _of_connect(view, workload, name)
    credential = name.removeprefix(CREDENTIAL_PREFIX).removeprefix(GATEWAY_CREDENTIAL_PREFIX)
    found = _credential(view, workload, credential)
    wants_roots = credential.endswith(ROOTS_SUFFIX) and not (found and found.certificate_chain)
    if wants_roots:
        found = _ca_credential(view, workload, credential)
    if found is None:
        return f"there is none in namespace {credential.rpartition('/')[0] or scope.namespace}"
    if not _may_have_roots(view, workload, found):
        owner = found.namespace or view.root_namespace
        return f"it is of namespace {owner} and not granted to namespace {scope.namespace}"
    if not (found.ca_certificates if wants_roots else found.certificate_chain):
        return "it lacks what is asked for: a certificate with its key, or CA certificates"
    if wants_roots:
        crl = inline(found.crl) if found.crl else None
        return secret_resource(name, trusted_ca=inline(found.ca_certificates), crl=crl)
    if not _may_have_key(view, workload, found):
        return f"the key is for gateways and not granted to {scope.namespace}/{_account(workload)}"
    return secret_resource(name, certificate=(inline(found.certificate_chain), inline(found.private_key)))


def _of_connect(view: View, workload: Workload, name: str) -> Resource | str:
    """The roots of Consul's own mesh, or a leaf of it; or the reason why this proxy gets neither.

    A leaf is for proxies with a service account of its service: those that intentions take for the service anyway.
    """
    if name == CONNECT_ROOTS_SECRET:
        roots = view.secret("", CONNECT_ROOTS)
        return secret_resource(name, trusted_ca=inline(roots.ca_certificates)) if roots else "Consul has told no roots"
    identity = parse_identity(workload.identity)
    if identity is None:
        return "nothing vouches for its service account"
    held = Grant(identity.namespace, identity.service_account)
    if name == CONNECT_CALLER_SECRET:
        found = view.secret("", connect_caller(held.namespace, held.service_account))
        if found is None:
            return (
                f"no service of Consul with the service account {held.namespace}/{held.service_account} has a leaf: "
                "give an instance tls_mode in its metadata, and the control plane's token service:write"
            )
    else:
        service = name.removeprefix(CONNECT_SERVICE_PREFIX)
        found = view.secret("", connect_leaf(service))
        if found is None or held not in found.grants:
            return f"no leaf of {service} is for {held.namespace}/{held.service_account}"
    return secret_resource(name, certificate=(inline(found.certificate_chain), inline(found.private_key)))


def _config_map(view: View, name: str) -> Resource | str:
    """The CA certificates of a ConfigMap, which are not secret; or the reason why there are none."""
    namespace, _, plain = name.removeprefix(CA_CONFIG_MAP_PREFIX).removesuffix(ROOTS_SUFFIX).partition("/")
    found = view.secret(namespace, CONFIG_MAP + plain) or view.secret(namespace, plain)
    if found is None or not found.ca_certificates or found.is_outdated:
        return f"there is no ConfigMap {plain} with valid CA certificates in namespace {namespace}"
    return secret_resource(name, trusted_ca=inline(found.ca_certificates))


def _credential(view: View, workload: Workload, name: str) -> Secret | None:
    """The credential of a name: ``namespace/name``, or the one of the proxy's namespace, else of the root namespace."""
    namespace, _, plain = name.rpartition("/")
    for place in (namespace,) if namespace else (workload.scope.namespace, view.root_namespace):
        found = view.secret(place, plain)
        if found is None and place == view.root_namespace:
            found = view.secret("", plain)
        if found is not None:
            return found
    return None


def _ca_credential(view: View, workload: Workload, name: str) -> Secret | None:
    """The credential with the CA certificates: the one of the ``-cacert`` name, else that of the plain name."""
    named = (_credential(view, workload, plain) for plain in (name, name.removesuffix(ROOTS_SUFFIX)))
    found = [secret for secret in named if secret is not None]
    return next((secret for secret in found if secret.ca_certificates), found[0] if found else None)


def _may_have_key(view: View, workload: Workload, secret: Secret) -> bool:
    """True if a proxy with an identity may have the private key."""
    scope = workload.scope
    is_gateway = scope.type is NodeType.ROUTER
    if is_gateway and not secret.is_guarded and _is_of(view, secret, scope.namespace):
        return True
    if is_gateway and _is_granted(view, secret, scope.namespace):
        return True
    return any(
        grant.namespace == scope.namespace
        and (grant.service_account == _account(workload) if grant.service_account else is_gateway)
        for grant in secret.grants
    )


def _may_have_roots(view: View, workload: Workload, secret: Secret) -> bool:
    """True if a proxy with an identity may have the CA certificates."""
    namespace = workload.scope.namespace
    if _is_of(view, secret, namespace) or _is_granted(view, secret, namespace):
        return True
    return any(grant.namespace == namespace for grant in secret.grants)


def _is_of(view: View, secret: Secret, namespace: str) -> bool:
    return (secret.namespace or view.root_namespace) == namespace


def _is_granted(view: View, secret: Secret, namespace: str) -> bool:
    """True if a Gateway of a namespace refers to a credential of another one, and a ReferenceGrant lets it."""
    return namespace in view.credential_grants(secret.namespace or view.root_namespace, secret.name)


def _account(workload: Workload) -> str:
    """The service account that the proxy is proven to have."""
    identity = parse_identity(workload.identity)
    return identity.service_account if identity is not None else ""


def _file(path: str) -> base_pb2.DataSource:
    return base_pb2.DataSource(filename=path)
