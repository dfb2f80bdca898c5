"""API groups that are not ours: a slip of ours is refused with what was meant, another's object is left alone."""

from __future__ import annotations

import pytest

from mesh_pilot.istio.kinds import KINDS, KindError, lookup, reason_ignored


@pytest.mark.parametrize(
    ("api_version", "kind", "hint"),
    [
        ("network.istio.io/v1", "VirtualService", "did you mean networking.istio.io/v1?"),
        ("networking.istio.oi/v1", "VirtualService", "did you mean networking.istio.io/v1?"),
        ("Networking.istio.io/v1", "EnvoyFilter", "did you mean networking.istio.io/v1alpha3?"),
        ("networking.isto.io/v1beta1", "ProxyConfig", "did you mean networking.istio.io/v1?"),
        ("secure.istio.io/v1", "AuthorizationPolicy", "did you mean security.istio.io/v1?"),
        ("telemetry.istio/v1", "Telemetry", "did you mean telemetry.istio.io/v1?"),
        ("mesh.istio.io/v1", "Sidecar", "did you mean networking.istio.io/v1?"),
        ("mesh.istio.io/v1", "Mesh", "known: networking.istio.io, security.istio.io, telemetry.istio.io"),
        ("rbac.istio.oi/v1alpha1", "ServiceRole", "did you mean rbac.istio.io/v1alpha1?"),
        ("networking.istio.io", "Gateway", "did you mean networking.istio.io/v1?"),
        ("v1", "Gateway", "did you mean networking.istio.io/v1?"),
        ("networking.k8s.io/v1", "HTTPRoute", "did you mean gateway.networking.k8s.io/v1?"),
        ("gateway.network.k8s.io/v1", "GRPCRoute", "did you mean gateway.networking.k8s.io/v1?"),
        ("gateway.networking.x-k8s.io/v1alpha1", "TCPRoute", "did you mean gateway.networking.k8s.io/v1?"),
    ],
)
def test_a_slip_in_the_group_is_refused_with_what_was_meant(api_version: str, kind: str, hint: str) -> None:
    with pytest.raises(KindError) as refused:
        lookup(api_version, kind)
    assert f"there is no {kind} in {api_version}; " in str(refused.value)
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("apps/v1", "Deployment"),
        ("v1", "ConfigMap"),
        ("v1", "Service"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("extensions/v1beta1", "Ingress"),
        ("gateway.networking.x-k8s.io/v1alpha1", "XMesh"),
        ("security.openshift.io/v1", "SecurityContextConstraints"),
        ("networking.internal.knative.dev/v1alpha1", "Ingress"),
        ("config.istio.io/v1alpha2", "handler"),
        ("cert-manager.io/v1", "Certificate"),
        ("authentication.k8s.io/v1", "TokenReview"),
        ("rbac.authorization.k8s.io/v1", "Role"),
    ],
)
def test_objects_of_others_are_left_alone(api_version: str, kind: str) -> None:
    assert lookup(api_version, kind) is None


@pytest.mark.parametrize(
    ("api_version", "kind", "reason"),
    [
        ("gateway.networking.x-k8s.io/v1alpha1", "XListenerSet", "it became ListenerSet"),
        ("extensions/v1beta1", "Ingress", "write networking.k8s.io/v1"),
        ("networking.k8s.io/v1", "NetworkPolicy", ""),
        ("v1", "Service", "write a ServiceEntry"),
        ("v1", "ConfigMap", ""),
        ("config.istio.io/v1alpha2", "handler", "Istio removed this API"),
        ("apps/v1", "Deployment", ""),
    ],
)
def test_what_one_may_expect_to_have_an_effect_is_ignored_with_a_reason(
    api_version: str, kind: str, reason: str
) -> None:
    found = reason_ignored(api_version, kind)
    assert reason in found
    assert bool(reason) == bool(found)


def test_no_group_of_ours_is_a_slip_of_another() -> None:
    for kind in KINDS.values():
        for api_version in kind.api_versions:
            assert lookup(api_version, kind.written) is kind
