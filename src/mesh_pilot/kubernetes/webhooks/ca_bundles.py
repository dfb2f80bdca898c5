"""The ``caBundle`` of webhook configurations, kept: the roots by which an API server knows us.

Ours are those with the label ``istio.io/rev`` of our revision: of a ValidatingWebhookConfiguration every webhook, of a
MutatingWebhookConfiguration those whose name ends like Istio's injector. Once the API server is seen to ask us,
``failurePolicy`` of validation becomes Fail, as with istiod: until then nothing could be written while we start.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, ApiServerError, KubernetesError, Object, reflect
from mesh_pilot.kubernetes.webhooks.counts import BundleCounts
from mesh_pilot.kubernetes.webhooks.validation import ALWAYS_REJECT
from mesh_pilot.kubernetes.webhooks.write_pace import WritePace
from mesh_pilot.replicas.election.base import Term

log = structlog.get_logger(scope="webhooks")

GROUP = "admissionregistration.k8s.io"
VALIDATING = ApiResource(
    GROUP, ("v1",), "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", cluster_scoped=True
)
MUTATING = ApiResource(
    GROUP, ("v1",), "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", cluster_scoped=True
)
INJECTOR = "sidecar-injector.istio.io"
"""The end of the names of webhooks for injection."""
REVISION_LABEL = "istio.io/rev"

_GATEWAYS = "/apis/networking.istio.io/v1/namespaces/{}/gateways"
_DENIED, _NO_DRY_RUN = "denied the request", "does not support dry run"
_AGAIN_SECONDS = 5.0
"""The longest wait before what did not work is tried again is ten times as long."""
_PATIENCE = 5
_NOT_ASKED = (
    "the api server does not ask our webhook, or does not reach or trust it: a Gateway that we always refuse was not "
    "refused in a dry run"
)
_NOT_FOUND, _CONFLICT, _INVALID = 404, 409, 422


class CaBundleWriter:
    """Keeps the configurations. State: those that were seen, which of them are to be looked at, and counters."""

    def __init__(
        self, open_client: Callable[[], ApiClient], roots: Callable[[], bytes], *, revision: str, namespace: str
    ) -> None:
        """``roots``: PEM. ``namespace``: our own."""
        self._open = open_client
        self._roots = roots
        self._revision = revision or "default"
        self._namespace = namespace
        self._seen: dict[tuple[ApiResource, str], Object] = {}
        self._stale: set[tuple[ApiResource, str]] = set()
        self._again: set[tuple[ApiResource, str]] = set()
        self._pace = WritePace[tuple[ApiResource, str]]()
        self._wake = trio.Event()
        self._is_asked = False
        self._unasked = 0
        self._troubles: dict[str, str] = {}
        self._attempts: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._updates = 0
        self._update_errors: Counter[str] = Counter()
        self._load_errors: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<CaBundleWriter {len(self._seen)} configurations, {len(self._stale)} to be looked at>"

    def counts(self) -> BundleCounts:
        return BundleCounts(
            dict(self._attempts),
            dict(self._retries),
            dict(self._failures),
            self._updates,
            dict(self._update_errors),
            dict(self._load_errors),
        )

    def roots_changed(self) -> None:
        """Look at all of them again."""
        self._stale |= set(self._seen)
        self._wake.set()

    async def run(self, term: Term) -> None:
        """Keep them for a term of leadership, until cancelled. Nothing is left behind."""
        self._seen.clear()
        self._stale.clear()
        self._pace.clear()
        selector = f"{REVISION_LABEL}={self._revision}"
        async with self._open() as client, trio.open_nursery() as nursery:
            for resource in (VALIDATING, MUTATING):
                nursery.start_soon(partial(reflect, client, resource, self, Backoff(), label_selector=selector))
            await self._keep(client, term)

    # -- the listener of their reflectors

    async def listed(self, resource: ApiResource, version: str, objects: list[Object]) -> None:
        for key in [key for key in self._seen if key[0] == resource]:
            self._forget(key)
        for found in objects:
            self._take(resource, found)

    async def changed(self, resource: ApiResource, version: str, found: Object, *, there: bool) -> None:
        if there:
            self._take(resource, found)
        else:
            self._forget((resource, found["metadata"]["name"]))

    def lost(self, resource: ApiResource, reason: str) -> None:
        self._say(resource.plural, reason, effect="until then the caBundle in them is not kept")

    def found(self, resource: ApiResource) -> None:
        self._troubles.pop(resource.plural, None)

    def _take(self, resource: ApiResource, found: Object) -> None:
        key = (resource, found["metadata"]["name"])
        self._seen[key] = found
        self._stale.add(key)
        self._wake.set()

    def _forget(self, key: tuple[ApiResource, str]) -> None:
        self._seen.pop(key, None)
        self._stale.discard(key)

    # -- what is written

    async def _keep(self, client: ApiClient, term: Term) -> None:
        backoff = Backoff(_AGAIN_SECONDS / 10, _AGAIN_SECONDS * 10)
        while True:
            waiting = False
            for key in sorted(self._stale, key=lambda key: key[1]):
                self._stale.discard(key)
                waiting |= not await self._settle(client, term, key)
            if not waiting:
                backoff.reset()
            self._wake = trio.Event()
            with trio.move_on_after(min(backoff.next_seconds() if waiting else 3600, self._pace.seconds())):
                if not self._stale or waiting:
                    await self._wake.wait()
            self._stale |= self._pace.due()
            if waiting:
                self._stale |= self._again
                self._again.clear()

    async def _settle(self, client: ApiClient, term: Term, key: tuple[ApiResource, str]) -> bool:
        """Write what differs in a configuration; False: it is to be tried again."""
        resource, name = key
        seen = self._seen.get(key)
        if seen is None:
            return True
        roots = self._roots()
        if not roots.startswith(b"-----BEGIN CERTIFICATE-----"):
            self._failed(resource, name, "load_ca_bundle_failure", "no root of the CA is known yet")
            return self._once_more(key)
        bundle = base64.b64encode(roots).decode()
        fails_open = resource is VALIDATING and _fails_open(seen)
        asked = not fails_open or await self._asked(client)
        patch = patch_of(seen, bundle, resource, fail_closed=fails_open and asked)
        if patch is None:
            self._failed(resource, name, "webhook_entry_not_found", f"none of its webhooks is named ...{INJECTOR}")
            return True
        if patch and self._pace.holds(key):
            self._say(name, "somebody else writes it as well", kind=resource.kind, effect="it is written now and then")
            return True
        if patch:
            self._attempts[name] += 1
            try:
                term.check()
                written = await client.patch(resource, name, patch, kind="json")
            except ApiServerError as error:
                return self._refused(key, error)
            except KubernetesError as error:
                self._failed(resource, name, "webhook_update_failure", str(error))
                return self._once_more(key)
            if self._seen.get(key) is seen:  # else the watch was faster, and it is looked at again
                self._seen[key] = written
            self._pace.written(key)
            if resource is VALIDATING:
                self._updates += 1
            self._troubles.pop(name, None)
            closed = {"failure_policy": "Fail"} if fails_open and asked else {}
            log.info("webhook configuration updated", kind=resource.kind, name=name, **closed)
        return asked or self._once_more(key)

    def _refused(self, key: tuple[ApiResource, str], error: ApiServerError) -> bool:
        resource, name = key
        if error.status in (_CONFLICT, _INVALID, _NOT_FOUND):
            return True  # it has changed since it was read: the watch brings it
        if resource is VALIDATING:
            self._update_errors[error.reason] += 1
        self._failed(resource, name, "webhook_update_failure", str(error))
        return self._once_more(key)

    def _once_more(self, key: tuple[ApiResource, str]) -> bool:
        self._retries[key[1]] += 1
        self._again.add(key)
        return False

    async def _asked(self, client: ApiClient) -> bool:
        """True if the API server was seen to ask us: it refuses, in a dry run, what we always refuse."""
        if not self._is_asked:
            body = {
                "apiVersion": "networking.istio.io/v1",
                "kind": "Gateway",
                "metadata": {
                    "name": "invalid-gateway",
                    "namespace": self._namespace,
                    "labels": {REVISION_LABEL: self._revision},
                    "annotations": {ALWAYS_REJECT: "true"},
                },
                "spec": {},
            }
            try:
                path = _GATEWAYS.format(self._namespace)
                await client.request("POST", path, params={"dryRun": "All"}, json=body)
                self._unasked += 1
                if self._unasked >= _PATIENCE:  # the first ones come before our Service has us
                    self._say("failurePolicy", _NOT_ASKED, effect="objects are written unvalidated")
            except ApiServerError as error:
                self._is_asked = _is_proof(error)
                if not self._is_asked:
                    self._say("failurePolicy", str(error), effect="objects are written unvalidated")
            except KubernetesError as error:
                self._say("failurePolicy", str(error), effect="objects are written unvalidated")
            if self._is_asked:
                log.info("the api server asks our webhook", effect="what cannot be validated is refused from now on")
        return self._is_asked

    # -- troubles

    def _failed(self, resource: ApiResource, name: str, reason: str, text: str) -> None:
        self._failures[name, reason] += 1
        if resource is VALIDATING and reason == "load_ca_bundle_failure":
            self._load_errors[reason] += 1
        self._say(name, text, kind=resource.kind, effect="the api server may not trust our webhook")

    def _say(self, subject: str, reason: str, **more: str) -> None:
        """A line in the log, once for a trouble."""
        if self._troubles.get(subject) != reason:
            self._troubles[subject] = reason
            log.warning("webhook configuration not kept", name=subject, reason=reason, **more)


def patch_of(found: Object, bundle: str, resource: ApiResource, *, fail_closed: bool) -> list[dict[str, Any]] | None:
    """The JSON patch that puts a configuration right; None if it has no webhook of ours."""
    webhooks = [
        (index, webhook)
        for index, webhook in enumerate(found.get("webhooks") or ())
        if resource is VALIDATING or str(webhook.get("name", "")).endswith(INJECTOR)
    ]
    if not webhooks:
        return None
    patch: list[dict[str, Any]] = []
    for index, webhook in webhooks:
        path = f"/webhooks/{index}"
        changes = []
        if (webhook.get("clientConfig") or {}).get("caBundle") != bundle:
            changes.append({"op": "add", "path": f"{path}/clientConfig/caBundle", "value": bundle})
        if fail_closed and webhook.get("failurePolicy") != "Fail":
            changes.append({"op": "add", "path": f"{path}/failurePolicy", "value": "Fail"})
        if changes:  # the test fails where somebody has put them in another order
            patch += [{"op": "test", "path": f"{path}/name", "value": webhook.get("name")}, *changes]
    return patch


def _is_proof(error: ApiServerError) -> bool:
    """True if we refused, or if there is nothing that we could refuse: no such kind, or a webhook without dry runs."""
    missing = error.status == _NOT_FOUND and "namespaces " not in str(error)
    return missing or _DENIED in str(error) or _NO_DRY_RUN in str(error)


def _fails_open(found: Object) -> bool:
    return any(webhook.get("failurePolicy", "Fail") != "Fail" for webhook in found.get("webhooks") or ())
