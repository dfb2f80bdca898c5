"""Virtual hosts and routes, chosen as Envoy does (its reference: "HTTP route components", "Route matching")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from mesh_pilot.explain.inspection.why.matchers import (
    Criterion,
    Message,
    RequestFacts,
    header_condition,
    met,
    parameter_condition,
    percentage,
    quoted,
    regex_condition,
)


@attrs.frozen
class DomainMatch:
    """The virtual host for an authority, and why."""

    index: int
    """Among the table's virtual hosts."""
    domain: str
    reason: str
    """In words: ``is exactly the host``."""


def find_virtual_host(
    domains: Sequence[Sequence[str]], authority: str, *, ignore_port: bool = False
) -> DomainMatch | None:
    """The virtual host of an authority, of the domains of each; None if there is none.

    An exact domain counts before the longest ``*.suffix``, that before the longest ``prefix.*``, and ``*`` comes last.
    """
    host = (without_port(authority) if ignore_port else authority).lower()
    best: tuple[tuple[int, int], DomainMatch] | None = None
    for index, names in enumerate(domains):
        for domain in names:
            found = _rank(domain.lower(), host)
            if found is not None and (best is None or found[0] > best[0]):
                best = found[0], DomainMatch(index, domain, found[1])
    return best[1] if best is not None else None


def _rank(domain: str, host: str) -> tuple[tuple[int, int], str] | None:
    if domain == host:
        return (3, 0), "is exactly the host"
    if domain == "*":
        return (0, 0), "is every other host"
    if domain.startswith("*") and len(host) >= len(domain) and host.endswith(domain[1:]):
        return (2, len(domain)), "has the longest end of the host"
    if domain.endswith("*") and len(host) >= len(domain) and host.startswith(domain[:-1]):
        return (1, len(domain)), "has the longest beginning of the host"
    return None


def without_port(authority: str) -> str:
    """A Host header without its port."""
    host, colon, port = authority.rpartition(":")
    is_port = colon and port.isascii() and port.isdigit() and (":" not in host or host.endswith("]"))
    return host if is_port else authority


@attrs.frozen
class RouteMatch:
    """A route of a virtual host, and how the request compares with it."""

    index: int
    is_met: bool
    conditions: tuple[Criterion, ...]

    portion: float = 0.0
    """The percentage of all such requests that it takes."""

    @property
    def missed(self) -> tuple[Criterion, ...]:
        return tuple(condition for condition in self.conditions if not condition.is_met)

    @property
    def share(self) -> float | None:
        """The runtime fraction of the route as a percentage; None: it is certain."""
        return next((condition.share for condition in self.conditions if condition.share is not None), None)


def matched_routes(routes: Sequence[Message], facts: RequestFacts) -> list[RouteMatch]:
    """Every route up to the one that surely takes the request; that is the last, if ``is_met``."""
    found = []
    left, reached = 100.0, 0.0
    denominators: set[str] = set()
    for index, route in enumerate(routes):
        is_met, conditions = met(route_conditions(route.get("match", {}), facts))
        match = RouteMatch(index, is_met, conditions)
        if match.is_met and match.share is None:
            found.append(attrs.evolve(match, portion=left))
            break
        if match.is_met and match.share is not None:
            denominators.add(_denominator(route))
            # One random number decides all fractions of a request: those of one denominator are within one another.
            is_nested = len(denominators) == 1
            portion = max(0.0, match.share - reached) if is_nested else left * match.share / 100
            left, reached = left - portion, max(reached, match.share)
            match = attrs.evolve(match, portion=portion)
        found.append(match)
    return found


def _denominator(route: Message) -> str:
    return str(route["match"]["runtime_fraction"].get("default_value", {}).get("denominator", "HUNDRED"))


def route_conditions(match: Message, facts: RequestFacts) -> Iterator[Criterion]:
    """The conditions of a RouteMatch; the path's is first."""
    yield _path_condition(match, facts)
    if "runtime_fraction" in match:
        share = percentage(match["runtime_fraction"].get("default_value"))
        certain = share in (0.0, 100.0)
        yield Criterion(f"a share of {share:.4g} % of requests", share > 0, share=None if certain else share)
    if "grpc" in match:
        kind = facts.header("content-type") or ""
        is_grpc = kind == "application/grpc" or kind.startswith("application/grpc+")
        yield Criterion("it is a gRPC call", is_grpc, f"content-type {quoted(facts.header('content-type'))}")
    for header in match.get("headers", ()):
        yield header_condition(header, facts)
    for parameter in match.get("query_parameters", ()):
        yield parameter_condition(parameter, facts)
    for kind in ("tls_context", "dynamic_metadata", "filter_state", "cookies"):
        if match.get(kind):
            yield Criterion(f"{kind} meets a condition that is not evaluated", False)


def _path_condition(match: Message, facts: RequestFacts) -> Criterion:
    path = facts.bare_path
    any_case = match.get("case_sensitive", True) is False
    suffix = ", in any case" if any_case else ""

    def folded(text: str) -> str:
        return text.lower() if any_case else text

    if "connect_matcher" in match:
        return Criterion("the method is CONNECT", facts.header(":method") == "CONNECT", quoted(facts.header(":method")))
    if facts.header(":method") == "CONNECT":
        return Criterion("the method is not CONNECT", False, "CONNECT")
    if "safe_regex" in match:
        return regex_condition("the path", match["safe_regex"], path)
    if "path" in match:
        wanted = str(match["path"])
        return Criterion(f"the path is {quoted(wanted)}{suffix}", folded(path) == folded(wanted), quoted(path))
    if "path_separated_prefix" in match:
        wanted = str(match["path_separated_prefix"])
        begins = folded(path).startswith(folded(wanted))
        is_met = begins and (len(path) == len(wanted) or path[len(wanted)] == "/")
        return Criterion(f"the path is {quoted(wanted)} or beneath it{suffix}", is_met, quoted(path))
    if "path_match_policy" in match:
        return Criterion("the path meets a template that is not evaluated", False, quoted(path))
    wanted = str(match.get("prefix", ""))
    if wanted in ("", "/"):
        return Criterion("every path", True, quoted(path))
    return Criterion(
        f"the path begins with {quoted(wanted)}{suffix}", folded(path).startswith(folded(wanted)), quoted(path)
    )
