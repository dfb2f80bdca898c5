"""Tokens of service accounts, issued and reviewed by a real API server."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from mesh_pilot.identity.trust.callers import AuthenticationError, AuthenticatorUnavailable, TrustDomains
from mesh_pilot.kubernetes.apiserver import ApiClient, load_access
from mesh_pilot.kubernetes.identity.token_review import KubernetesToken
from mesh_pilot.model.spiffe import Identity
from tests.identity.test_jwt import showing
from tests.support.apiserver import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.process]


def authenticator(access_token: str, server: ApiServer) -> KubernetesToken:
    access = load_access(server.kubeconfig("reviewer", token=access_token))
    client = partial(ApiClient, access, answer_seconds=5.0)
    return KubernetesToken(client, ("istio-ca",), lambda: TrustDomains("cluster.local"))


async def test_a_projected_token_proves_its_account_and_no_other_token_does(apiserver: ApiServer) -> None:
    async with apiserver.namespace() as namespace:
        await apiserver.apply(namespace.object("v1", "ServiceAccount", "web"))
        judge = authenticator("admin-token", apiserver)
        good = await apiserver.account_token(namespace.name, "web", audiences=["istio-ca"])
        assert await judge.authenticate(showing(good)) == Identity("cluster.local", namespace.name, "web")

        for_others = await apiserver.account_token(namespace.name, "web", audiences=["https://kubernetes.default.svc"])
        with pytest.raises(AuthenticationError, match="istio-ca"):
            await judge.authenticate(showing(for_others))
        head, claims, signature = good.split(".")
        forged = f"{head}.{claims}.{signature[::-1]}"
        with pytest.raises(AuthenticationError, match="rejected by Kubernetes"):
            await judge.authenticate(showing(forged))

        await apiserver.delete(namespace.object("v1", "ServiceAccount", "web"))
        gone = authenticator("admin-token", apiserver)
        with trio.fail_after(30):  # it caches what it has reviewed for ten seconds
            while True:
                try:
                    await gone.authenticate(showing(good))
                except AuthenticationError as error:
                    assert "rejected by Kubernetes" in str(error)
                    break
                gone = authenticator("admin-token", apiserver)
                await trio.sleep(0.2)


async def test_without_the_role_for_reviews_it_says_which_is_missing(apiserver: ApiServer) -> None:
    async with apiserver.namespace() as namespace:
        await apiserver.apply(namespace.object("v1", "ServiceAccount", "mesh-pilot"))
        judge = authenticator(await apiserver.account_token(namespace.name, "mesh-pilot"), apiserver)
        token = await apiserver.account_token(namespace.name, "mesh-pilot", audiences=["istio-ca"])
        with pytest.raises(AuthenticatorUnavailable):
            await judge.authenticate(showing(token))
