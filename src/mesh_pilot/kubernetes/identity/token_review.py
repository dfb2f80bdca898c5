"""Callers with the token of a Kubernetes service account, as it is projected into a pod.

The API server is asked (TokenReview): it knows also that the pod is gone, or the account. Where it cannot be asked,
its issuer can be one of ``--jwt-rules``. Source of the rules: Kubernetes, "Managing Service Accounts".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import attrs
import httpx

from mesh_pilot.base.reading import as_object
from mesh_pilot.identity.authenticators.compact_token import read_token, token_in
from mesh_pilot.identity.authenticators.jwt import identity_of
from mesh_pilot.identity.authenticators.token_issuers import service_account_names
from mesh_pilot.identity.authenticators.token_questions import Names, TokenQuestions
from mesh_pilot.identity.trust.callers import (
    AuthenticationError,
    Credentials,
    TrustDomainsNow,
)
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiServerError, KubernetesError
from mesh_pilot.model.spiffe import Identity

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
GROUP = "system:serviceaccounts"
"""The group of all service accounts, and of no other users."""

MAX_REVIEWS = 16
"""Reviews at the same time."""
REMEMBERED_SECONDS = 10.0
MAX_ANSWER_BYTES = 1_000_000


@attrs.frozen(kw_only=True)
class KubernetesTokenSettings:
    """The API server to ask, and for whom tokens must be."""

    kubeconfig: Path | None = None
    """None: as a pod where we are one, else as kubectl finds it."""
    audiences: tuple[str, ...] = ("istio-ca",)


class _ReviewError(Exception):
    """A review that the API server did not make: why."""


class KubernetesToken:
    """Judges tokens by asking the API server. Mutable state: the questions."""

    name = "kubernetes"

    def __init__(
        self,
        client: Callable[[], ApiClient],
        audiences: Collection[str],
        trust_domains: TrustDomainsNow,
        *,
        other_issuers: Collection[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        """Tokens of ``other_issuers`` are not shown to the API server."""
        self._questions = TokenQuestions(
            client,
            failures=(_ReviewError, KubernetesError),
            trouble="tokens cannot be reviewed by Kubernetes",
            refusal="the token cannot be reviewed now; the control plane's log says why",
            at_once=MAX_REVIEWS,
            remembered_seconds=REMEMBERED_SECONDS,
        )
        self._audiences = tuple(audiences)
        self._trust_domains = trust_domains
        self._other_issuers = frozenset(other_issuers)
        self._now = now

    @property
    def reviews(self) -> int:
        """The number of times the API server was asked."""
        return self._questions.count

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        text = token_in(credentials)
        if text is None:
            return None
        token = read_token(text)
        if token.issuer in self._other_issuers:
            return None
        token.check_times(self._now())  # claims that are not proven; to refuse by, they are good enough
        token.check_audience(self._audiences)
        names = await self._questions.names(text, partial(self._reviewed, text))
        return identity_of(self._trust_domains().own, *names)

    async def _reviewed(self, text: str, client: ApiClient) -> Names:
        return _names(await _review(client, text, self._audiences), self._audiences)


async def _review(client: ApiClient, text: str, audiences: Collection[str]) -> Mapping[str, object]:
    """The status of a TokenReview. Raises _ReviewError and KubernetesError, whose texts never have the token."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": text, "audiences": list(audiences)},
    }
    try:
        found = await client.request("POST", REVIEWS, json=body, max_bytes=MAX_ANSWER_BYTES)
    except ApiServerError as error:
        if error.status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise _ReviewError(
                f"it answers {error.status}: this control plane needs the ClusterRole system:auth-delegator"
            ) from None
        raise _ReviewError(f"it answers {error.status}") from None
    status = found.get("status")
    if not isinstance(status, dict):
        raise _ReviewError("what answers is not an API server: there is no status")
    return status


def _names(status: Mapping[str, object], audiences: Collection[str]) -> tuple[str, str]:
    """Namespace and name of the service account of a review. Raises AuthenticationError."""
    if status.get("authenticated") is not True or status.get("error"):
        raise AuthenticationError("rejected", "the token was rejected by Kubernetes: it is forged, expired or revoked")
    found = status.get("audiences")
    if not isinstance(found, list) or not any(audience in audiences for audience in found):
        raise AuthenticationError("audience", f"Kubernetes does not say that its token is for {', '.join(audiences)}")
    user = as_object(status, "user")
    name, groups = user.get("username"), user.get("groups")
    if not isinstance(name, str) or not isinstance(groups, list) or GROUP not in groups:
        raise AuthenticationError("claim_form", "the token is not that of a service account")
    return service_account_names(name)
