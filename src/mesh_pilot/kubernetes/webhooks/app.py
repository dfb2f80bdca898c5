"""The webhooks as an ASGI application: ``/validate``, ``/inject``, ``/httpsReady``, as istiod has them.

What is asked is judged in threads, a few at a time, so that proxies are still served. A fault costs the request
that meets it, and no other.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from typing import Any

import structlog
import trio

from mesh_pilot.base.reading import as_object, as_string_map
from mesh_pilot.kubernetes.webhooks.admission import (
    AdmissionAnswer,
    AdmissionRequest,
    ReviewError,
    answer_review,
    read_review,
)
from mesh_pilot.kubernetes.webhooks.counts import InjectionCounts, ValidationCounts
from mesh_pilot.kubernetes.webhooks.injection.inject import Injector
from mesh_pilot.kubernetes.webhooks.paths import variables_of
from mesh_pilot.kubernetes.webhooks.sidecars import MeshOf, inject_into, pod_of
from mesh_pilot.kubernetes.webhooks.validation import Validated, validate
from mesh_pilot.model.histogram import Histogram
from mesh_pilot.net.rpc.rate_limits import LogLimiter

log = structlog.get_logger(scope="webhooks")

MAX_BODY = 8 * 1024 * 1024
"""Bytes of a review. An API server takes objects of 3 MB at most, and sends the old one, too."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]

_AT_ONCE = 4
"""Threads: one that takes long leaves the others to the next."""
_SECONDS = (0.1, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0)
_ODD = "(others)"


class WebhookApp:
    """Answers an API server. State: counters."""

    def __init__(self, injector: Callable[[], Injector], mesh_of: MeshOf, *, is_ready: Callable[[], bool]) -> None:
        """``injector``: the one in force. ``mesh_of`` is called in Trio's thread. ``is_ready``: the mesh is known."""
        self._injector = injector
        self._mesh_of = mesh_of
        self._is_ready = is_ready
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._validated: Counter[tuple[str, str, str]] = Counter()
        self._refused: Counter[tuple[str, str, str, str]] = Counter()
        self._http_errors: Counter[int] = Counter()
        self._injections = {"requests": 0, "success": 0, "failure": 0, "skip": 0}
        self._seconds = Histogram(_SECONDS)
        self._logged = LogLimiter()

    def __repr__(self) -> str:
        return f"<WebhookApp {sum(self._validated.values())} validated, {self._injections['success']} injected>"

    def validations(self) -> ValidationCounts:
        return ValidationCounts(dict(self._validated), dict(self._refused), dict(self._http_errors))

    def injections(self) -> InjectionCounts:
        return InjectionCounts(**self._injections, seconds=self._seconds.state())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        path = scope["path"].rstrip("/")
        if path == "/httpsReady":
            ready = self._is_ready()
            await _answer(send, 200 if ready else 503, b"ready\n" if ready else b"not ready\n")
            return
        # One refusal, found in the order in which it is cheap: the caller before readiness, readiness before the body,
        # the body before its parsing. Injection waits for the sources, validation does not: a rule depends on no other
        # object.
        injects = path == "/inject" or path.startswith("/inject/")
        if not injects and path != "/validate" and not path.startswith("/validate/"):
            await _answer(send, 404, b"no such page; API servers ask at /validate and /inject\n")
            return
        if injects:
            self._injections["requests"] += 1
        refusal = _refusal(scope)
        if injects and not refusal and not self._is_ready():
            refusal = (503, "sources are not in yet: what a sidecar depends on may be among them")
        body = b"" if refusal else (await receive()).get("body", b"")
        if not refusal and not body:
            refusal = (400, "no body found")
        if not refusal:
            try:
                request = await self._in_thread(read_review, body)
            except ReviewError as error:
                refusal = (400, str(error))
        if refusal:
            self._failed(injects, refusal[0])
            if (more := self._admitted(injects, refusal[0])) is not None:
                log.warning("webhook request refused", path=path[:200], reason=refusal[1][:500], **more)
            await _answer(send, refusal[0], f"{refusal[1]}\n".encode())
            return
        del body
        answer = await (self._inject(request, path) if injects else self._validate(request))
        await _answer(send, 200, await self._in_thread(answer_review, request, answer), "application/json")

    async def _validate(self, request: AdmissionRequest) -> AdmissionAnswer:
        try:
            validated: Validated = await self._in_thread(validate, request)
        except Exception as error:
            self._http_errors[500] += 1
            return self._broken(request, error)
        labels = validated.resource if any(validated.resource) else (_ODD, _ODD, _ODD)
        if validated.refusal is None:
            self._validated[labels] += 1
        elif not request.is_dry_run:
            self._refused[(*labels, validated.refusal.value)] += 1
        if not validated.answer.allowed and (more := self._admitted("object", request.place)) is not None:
            more |= {"dry_run": True} if request.is_dry_run else {}
            log.info("object refused by webhook", object=request.place, reason=validated.answer.message[:1000], **more)
        return validated.answer

    async def _inject(self, request: AdmissionRequest, path: str) -> AdmissionAnswer:
        started = time.perf_counter()
        answer, skipped = AdmissionAnswer(), "it is not a Pod that is created"
        try:
            if (pod := pod_of(request)) is not None:
                metadata = as_object(pod, "metadata")
                labels, annotations = as_string_map(metadata, "labels"), as_string_map(metadata, "annotations")
                mesh = self._mesh_of(request.namespace, labels, annotations)
                answer, skipped = await self._in_thread(
                    inject_into, self._injector(), request, mesh, variables_of(path)
                )
        except Exception as error:
            answer = self._broken(request, error)
        self._seconds.observe(time.perf_counter() - started)
        if not answer.allowed:
            self._injections["failure"] += 1
            if (more := self._admitted("pod", request.place)) is not None:
                log.warning("sidecar not injected", pod=request.place, reason=answer.message[:1000], **more)
        elif skipped:
            self._injections["skip"] += 1
            log.debug("no sidecar", pod=request.place, reason=skipped)
        else:
            self._injections["success"] += 1
            log.debug("sidecar injected", pod=request.place, operations=len(answer.patch))
        return answer

    def _broken(self, request: AdmissionRequest, error: Exception) -> AdmissionAnswer:
        """The answer where we fail ourselves. The configuration's failurePolicy is for those who do not answer."""
        if (more := self._admitted("error", request.resource, type(error).__name__)) is not None:
            log.error("internal error in a webhook", object=request.place, exc_info=error, **more)
        message = f"{request.place}: internal error of mesh-pilot: {type(error).__name__}; its log has the details"
        return AdmissionAnswer(allowed=False, code=500, message=message)

    def _admitted(self, *subject: Hashable) -> dict[str, Any] | None:
        """The field of a line that counts those like it that were left out; None: it is left out, too.

        Whoever reaches the port may ask.
        """
        suppressed = self._logged.admit(subject, trio.current_time())
        return None if suppressed is None else {"suppressed": suppressed} if suppressed else {}

    def _failed(self, injects: bool, status: int) -> None:
        if injects:
            self._injections["failure"] += 1
        else:
            self._http_errors[status] += 1

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._limiter, abandon_on_cancel=True)


def _refusal(scope: Scope) -> tuple[int, str] | None:
    """The status and reason for a request that is not a review, by its head."""
    if scope["method"] != "POST":
        return 405, "reviews come by POST"
    headers = {name.lower(): value for name, value in scope["headers"]}
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return None if kind == b"application/json" else (415, "invalid Content-Type, want application/json")


async def _answer(send: Send, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
