"""Objects of the security kinds of Istio 1.1, written as short as they can be read. All are in `shop` unless told."""

from __future__ import annotations


def policy(name: str, spec: str, *, namespace: str = "shop", created: str = "2024-01-01") -> str:
    return _object("authentication.istio.io", "Policy", name, spec, namespace, created)


def mesh_policy(spec: str) -> str:
    return _object("authentication.istio.io", "MeshPolicy", "default", spec)


def role(name: str, rules: str, *, namespace: str = "shop") -> str:
    return _object("rbac.istio.io", "ServiceRole", name, f"rules: {rules}", namespace)


def binding(name: str, subjects: str, *, role: str = "", more: str = "", namespace: str = "shop") -> str:
    """A binding of the role of the same name, unless told."""
    reference = more if "actions:" in more else f"roleRef: {{kind: ServiceRole, name: {role or name}}}, {more}"
    return _object("rbac.istio.io", "ServiceRoleBinding", name, f"subjects: {subjects}, {reference}", namespace)


def access(mode: str, more: str = "", *, namespace: str = "") -> str:
    """The ClusterRbacConfig; the RbacConfig of a namespace."""
    kind = "RbacConfig" if namespace else "ClusterRbacConfig"
    return _object("rbac.istio.io", kind, "default", f"mode: '{mode}', {more}", namespace)


def _object(group: str, kind: str, name: str, spec: str, namespace: str = "", created: str = "2024-01-01") -> str:
    where = f"namespace: {namespace}, " if namespace else ""
    return (
        f"---\napiVersion: {group}/v1alpha1\nkind: {kind}\n"
        f"metadata: {{name: {name}, {where}creationTimestamp: '{created}T00:00:00Z'}}\nspec: {{{spec}}}\n"
    )
