"""Rules for ReferenceGrant, BackendTLSPolicy and XBackendTrafficPolicy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.rules.context import Context, check, check_parts, error, warning
from mesh_pilot.istio.rules.gateway_references import (
    check_count,
    check_distinct,
    check_duration,
    check_group,
    check_kind,
    check_name,
    check_namespace,
    check_one_of,
    check_options,
    check_reference,
    hostname_reason,
    seconds_of,
    subdomain_reason,
)
from mesh_pilot.istio.rules.values import TOKEN
from mesh_pilot.model.config import Problem

_COOKIE_PATH = re.compile(r"/[\x21-\x3a\x3c-\x7e]{0,1023}")
_HEADERS_OF_MESSAGES = frozenset(
    ("connection", "content-length", "content-type", "host", "location", "set-cookie", "transfer-encoding", "upgrade")
)
"""Headers that a response does not survive as the name of a session."""
_URI = re.compile(r"[^:/?#]+://[^/?#]*[^?#]*(\?[^#]*)?(#.*)?")


def validate_grant(spec: api.ReferenceGrantSpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a ReferenceGrant."""
    yield from check_count("spec.from", spec.from_, 16, least=1)
    yield from check_count("spec.to", spec.to, 16, least=1)
    for index, source in enumerate(spec.from_):
        path = f"spec.from[{index}]"
        yield from check_group(f"{path}.group", source.group, required=True)
        yield from check_kind(f"{path}.kind", source.kind, required=True)
        if not source.namespace:
            yield error(f"{path}.namespace", "is missing")
        else:
            yield from check_namespace(f"{path}.namespace", source.namespace)
    for index, target in enumerate(spec.to):
        path = f"spec.to[{index}]"
        yield from check_group(f"{path}.group", target.group, required=True)
        yield from check_kind(f"{path}.kind", target.kind, required=True)
        yield from check_parts(path, target, check_name, "name")


def validate_backend_tls(spec: api.BackendTlsPolicySpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a BackendTLSPolicy."""
    yield from _check_targets(spec.target_refs)
    yield from check_options("spec.options", spec.options)
    yield from check_parts("spec", spec, _check_validation, "validation", required=True)


def _check_targets(targets: Sequence[api.LocalPolicyTargetReference]) -> Iterator[Problem]:
    path = "spec.targetRefs"
    yield from check_count(path, targets, 16, least=1)
    for index, target in enumerate(targets):
        yield from check_reference(f"{path}[{index}]", target, required=True)
    keys = [(target.group, target.kind, target.name, target.section_name or "") for target in targets]
    yield from check_distinct(path, keys, "has the same target and sectionName as")


def _check_validation(path: str, validation: api.BackendTlsPolicyValidation) -> Iterator[Problem]:
    known = validation.well_known_ca_certificates
    yield from check_count(f"{path}.caCertificateRefs", validation.ca_certificate_refs, 8)
    for index, reference in enumerate(validation.ca_certificate_refs):
        yield from check_reference(f"{path}.caCertificateRefs[{index}]", reference, required=True)
    if validation.ca_certificate_refs and known:
        yield error(path, "only one of caCertificateRefs and wellKnownCACertificates may be set")
    if not validation.ca_certificate_refs and not known:
        yield error(path, "needs caCertificateRefs or wellKnownCACertificates")
    if known and known != "System" and "/" not in known:
        yield error(f"{path}.wellKnownCACertificates", f'unknown value "{known[:80]}"; System, or domain/name')
    yield from check(f"{path}.hostname", hostname_reason(validation.hostname, wildcard=False))
    yield from check_count(f"{path}.subjectAltNames", validation.subject_alt_names, 5)
    yield from check_parts(path, validation, _check_alt_name, "subject_alt_names")


def _check_alt_name(path: str, name: api.SubjectAltName) -> Iterator[Problem]:
    yield from check_one_of(f"{path}.type", name.type, ("Hostname", "URI"), required=True)
    for type, field, value in (("Hostname", "hostname", name.hostname), ("URI", "uri", name.uri)):
        if name.type == type and not value:
            yield error(f"{path}.{field}", f"is missing: type {type} needs it")
        elif name.type != type and value:
            yield error(f"{path}.{field}", f"can't be set with type {name.type}; it is for {type}")
    if name.hostname:
        yield from check(f"{path}.hostname", subdomain_reason(name.hostname.removeprefix("*."), "host name"))
    if name.uri and (len(name.uri) > 253 or not _URI.fullmatch(name.uri)):
        yield error(f"{path}.uri", f'"{name.uri[:80]}" is not a URI, such as spiffe://cluster.local/ns/shop/sa/reviews')


def validate_backend_traffic(spec: api.BackendTrafficPolicySpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with an XBackendTrafficPolicy."""
    yield from _check_targets(spec.target_refs)
    if (constraint := spec.retry_constraint) is not None:
        path = "spec.retryConstraint"
        if (budget := constraint.budget) is not None:
            yield from _check_interval(f"{path}.budget.interval", budget.interval, 1)
            if budget.percent is not None and not 0 <= budget.percent <= 100:
                yield error(f"{path}.budget.percent", f"{budget.percent} is not a percentage; 0 to 100")
        if (rate := constraint.min_retry_rate) is not None:
            yield from _check_interval(f"{path}.minRetryRate.interval", rate.interval, 0.001)
            if rate.count is not None and not 1 <= rate.count <= 1_000_000:
                yield error(f"{path}.minRetryRate.count", f"{rate.count} is out of range; 1 to 1000000")
    yield from check_parts("spec", spec, check_session, "session_persistence")


def _check_interval(path: str, interval: str | None, least: float) -> Iterator[Problem]:
    yield from check_duration(path, interval)
    seconds = seconds_of(interval)
    if seconds is not None and not least <= seconds <= 3600:
        yield error(path, f"{interval} is out of range; {'1s' if least == 1 else '1ms'} to 1h")


def check_session(path: str, session: api.SessionPersistence) -> Iterator[Problem]:
    """Session persistence of a rule or a policy."""
    yield from check_one_of(f"{path}.type", session.type, ("Cookie", "Header"))
    yield from check_duration(f"{path}.absoluteTimeout", session.absolute_timeout)
    yield from check_duration(f"{path}.idleTimeout", session.idle_timeout)
    is_header = session.type == "Header"
    cookie = session.cookie or session.cookie_config
    if cookie is not None:
        here = f"{path}.{'cookie' if session.cookie is not None else 'cookieConfig'}"
        if is_header:
            yield error(here, "can't be set with type Header")
        yield from _check_cookie(here, cookie)
    # Envoy takes the end of a session from its cookie alone: what a header or another cookie cannot say is a warning.
    is_permanent = cookie is not None and cookie.lifetime_type == "Permanent"
    if is_permanent and session.absolute_timeout is None:
        yield error(f"{path}.absoluteTimeout", "is missing: a permanent cookie needs it")
    elif session.absolute_timeout is not None and (is_header or not is_permanent):
        yield warning(f"{path}.absoluteTimeout", "has no effect: only a cookie of lifetimeType Permanent has an end")
    if session.header is not None and not is_header:
        yield error(f"{path}.header", "can't be set with type Cookie")
    named = [("sessionName", session.session_name, 128)]
    if session.header is not None:
        named.append(("header.name", session.header.name, 256))
    for field, name, longest in named:
        yield from _check_token(f"{path}.{field}", name, longest)
        if is_header and name is not None and name.lower() in _HEADERS_OF_MESSAGES:
            yield error(f"{path}.{field}", f"{name} has its own meaning in responses; use another header")


def _check_cookie(path: str, cookie: api.CookieConfig) -> Iterator[Problem]:
    yield from check_one_of(f"{path}.lifetimeType", cookie.lifetime_type, ("Session", "Permanent"))
    yield from _check_token(f"{path}.name", cookie.name, 256)
    if cookie.path is not None and not _COOKIE_PATH.fullmatch(cookie.path):
        yield error(f"{path}.path", f'"{cookie.path[:80]}" is not a path of a cookie, such as /shop')


def _check_token(path: str, name: str | None, longest: int) -> Iterator[Problem]:
    if name is not None and (len(name) > longest or not TOKEN.fullmatch(name)):
        yield error(path, f'"{name[:80]}" is not a name of a cookie or header')
