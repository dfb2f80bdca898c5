"""The port of a redirect that names none.

A ``Host`` header with a port, ``shop.test:8080``, says where the client is connected, which is of no use to another
scheme. So a redirect to a scheme, or one with ``derivePort: FROM_PROTOCOL_DEFAULT``, leads to the scheme's own port
(Istio's HTTPRedirect reference; the Gateway API's HTTPRequestRedirectFilter). Envoy drops the port of the old scheme
only if it is 80 or 443. Requests whose ``Host`` has another one therefore have their own routes, before the redirect's.
Without a port in the ``Host`` the answer has no port, as the Gateway API asks for.
"""

from __future__ import annotations

from mesh_pilot.api.istio.networking import v1alpha3 as api

DEFAULT_PORTS = {"http": 80, "https": 443}

SchemePort = tuple[str, int]
"""The scheme of requests, empty for any, and the port that they are redirected to."""


def default_ports(spec: api.HttpRedirect | None) -> tuple[SchemePort, ...]:
    """The ports to which a redirect leads where a request's ``Host`` has a port; none if it says a port or authority,
    or keeps the port of the request."""
    if spec is None or spec.port is not None or spec.authority:
        return ()
    if spec.derive_port is api.HttpRedirectRedirectPortSelection.FROM_REQUEST_PORT:
        return ()
    if spec.scheme:
        port = DEFAULT_PORTS.get(spec.scheme.lower())
        return (("", port),) if port is not None else ()
    return tuple(DEFAULT_PORTS.items()) if spec.derive_port is not None else ()
