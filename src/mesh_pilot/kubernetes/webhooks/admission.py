"""AdmissionReviews, as an API server sends them (``admission.k8s.io/v1`` and ``v1beta1``), and their answers. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.base.reading import as_object, as_string

VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
MAX_MESSAGE = 8 * 1024
"""Characters of a reason; people read it in a terminal."""
MAX_WARNINGS = 20
"""An API server passes on 4096 characters of warnings in all."""


class ReviewError(ValueError):
    """A body that is not an AdmissionReview: the reason."""


@attrs.frozen(kw_only=True)
class AdmissionRequest:
    """The operation on an object that an API server asks about."""

    api_version: str
    """The version of the review; the answer has the same."""
    uid: str
    operation: str
    """``CREATE``, ``UPDATE``, ``DELETE`` or ``CONNECT``."""
    namespace: str
    name: str
    group: str
    version: str
    resource: str
    """The plural name of the object's kind."""
    kind: str
    object: Any = attrs.field(repr=False)
    """The object as it is to be; None where it goes."""
    is_dry_run: bool = False

    @property
    def place(self) -> str:
        """The object, for people and logs."""
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name or '(no name yet)'}"


@attrs.frozen(kw_only=True)
class AdmissionAnswer:
    """The answer to a request."""

    allowed: bool = True
    code: int = 0
    """The HTTP status of a refusal: 400 for what cannot be read, 422 for what is wrong in it."""
    message: str = ""
    causes: Sequence[tuple[str, str]] = ()
    """Fields, each with what is wrong with it."""
    warnings: Sequence[str] = ()
    patch: Sequence[Mapping[str, Any]] = ()
    """JSON patch; empty: nothing is to be changed."""


_REASONS = {400: "BadRequest", 422: "Invalid", 500: "InternalError"}


def read_review(body: bytes) -> AdmissionRequest:
    """The request in a body. Raises ReviewError."""
    try:
        review = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ReviewError(f"the body is not JSON: {error}") from None
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview":
        raise ReviewError("the body is not an AdmissionReview")
    if (version := review.get("apiVersion")) not in VERSIONS:
        raise ReviewError(f"apiVersion is {str(version)[:100]!r}; understood: {', '.join(VERSIONS)}")
    request = review.get("request")
    if not isinstance(request, dict):
        raise ReviewError("the AdmissionReview has no request")
    resource = as_object(request, "resource")
    return AdmissionRequest(
        api_version=version,
        uid=_text(request, "uid"),
        operation=_text(request, "operation"),
        namespace=_text(request, "namespace"),
        name=_text(request, "name"),
        group=_text(resource, "group"),
        version=_text(resource, "version"),
        resource=_text(resource, "resource"),
        kind=_text(as_object(request, "kind"), "kind"),
        object=request.get("object"),
        is_dry_run=request.get("dryRun") is True,
    )


def answer_review(request: AdmissionRequest, answer: AdmissionAnswer) -> bytes:
    """The body of the answer."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": answer.allowed}
    if answer.patch and answer.allowed:
        patch = json.dumps(list(answer.patch), separators=(",", ":")).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if not answer.allowed:
        causes = [{"reason": "FieldValueInvalid", "field": field, "message": text} for field, text in answer.causes]
        response["status"] = {
            "status": "Failure",
            "code": answer.code,
            "reason": _REASONS.get(answer.code, "BadRequest"),
            "message": _shortened(answer.message),
            "details": {"name": request.name, "group": request.group, "kind": request.kind, "causes": causes},
        }
    if answer.warnings:
        more = len(answer.warnings) - MAX_WARNINGS
        shown = [_shortened(warning) for warning in answer.warnings[:MAX_WARNINGS]]
        response["warnings"] = [*shown, *([f"{more} more warnings"] if more > 0 else [])]
    review = {"apiVersion": request.api_version, "kind": "AdmissionReview", "response": response}
    return json.dumps(review, separators=(",", ":")).encode()


def _shortened(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]} ..."


def _text(data: Mapping[str, Any], name: str) -> str:
    return as_string(data, name)[:1024]
