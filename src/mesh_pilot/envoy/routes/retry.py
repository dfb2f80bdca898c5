"""Retries: an HTTPRetry as Envoy's RetryPolicy. Istio's default is two retries of failures that are safe to retry."""

from __future__ import annotations

from collections.abc import Iterable

from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2
from envoy.extensions.retry.priority.previous_priorities.v3 import previous_priorities_config_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import any_of, duration, uint32

DEFAULT_ATTEMPTS = 2
DEFAULT_RETRY_ON = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
STATUS_CODES = "retriable-status-codes"

HOST_SELECTION_ATTEMPTS = 5
"""Attempts to pick another endpoint before one that failed already is used again."""
PRIORITY_UPDATE_FREQUENCY = 2
"""Failed attempts at a priority before the next one is tried."""


def retry_policy(retries: api.HttpRetry | None, *, hashed: bool = False) -> rc.RetryPolicy | None:
    """The retry policy of a route, or the default for None; None if retries are off (``attempts: 0``).

    ``hashed``: the request's hash chooses the endpoint, so by default another one is not looked for.
    """
    if retries is None:
        retries = api.HttpRetry(attempts=DEFAULT_ATTEMPTS)
    if retries.attempts <= 0:
        return None
    retry_on, codes = _conditions(retries.retry_on)
    policy = rc.RetryPolicy(retry_on=retry_on, num_retries=uint32(retries.attempts), retriable_status_codes=codes)
    policy.host_selection_retry_max_attempts = HOST_SELECTION_ATTEMPTS
    ignores = retries.retry_ignore_previous_hosts
    if ignores or (ignores is None and not hashed):
        policy.retry_host_predicate.add(
            name="envoy.retry_host_predicates.previous_hosts",
            typed_config=any_of(previous_hosts_pb2.PreviousHostsPredicate()),
        )
    if retries.per_try_timeout is not None:
        policy.per_try_timeout.CopyFrom(duration(retries.per_try_timeout))
    if retries.backoff is not None:
        policy.retry_back_off.base_interval.CopyFrom(duration(retries.backoff))
    if retries.retry_remote_localities:
        policy.retry_priority.name = "envoy.retry_priorities.previous_priorities"
        config = previous_priorities_config_pb2.PreviousPrioritiesConfig(update_frequency=PRIORITY_UPDATE_FREQUENCY)
        policy.retry_priority.typed_config.CopyFrom(any_of(config))
    return policy


def _conditions(retry_on: str) -> tuple[str, Iterable[int]]:
    """(Envoy's conditions, status codes): ``retryOn`` lists both."""
    if not retry_on:
        return DEFAULT_RETRY_ON, ()
    parts = [part.strip() for part in retry_on.split(",") if part.strip()]
    codes = [int(part) for part in parts if part.isdecimal()]
    conditions = [part for part in parts if not part.isdecimal()]
    if codes and STATUS_CODES not in conditions:
        conditions.append(STATUS_CODES)
    return ",".join(conditions), codes
