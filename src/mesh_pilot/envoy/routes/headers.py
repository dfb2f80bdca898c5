"""Header operations: the headers that a route or a destination adds to and removes from requests and responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2 as rc

from mesh_pilot.api.istio.networking import v1alpha3 as api

APPEND = base_pb2.HeaderValueOption.APPEND_IF_EXISTS_OR_ADD
OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


@attrs.frozen
class HeaderOperations:
    """Changes of headers. Envoy has the same four lists on routes and on weighted clusters."""

    request_add: tuple[base_pb2.HeaderValueOption, ...] = ()
    request_remove: tuple[str, ...] = ()
    response_add: tuple[base_pb2.HeaderValueOption, ...] = ()
    response_remove: tuple[str, ...] = ()
    authority: str = ""
    """The host to set on requests; Envoy has a separate field for it."""

    def write_to(self, target: rc.Route | rc.WeightedCluster.ClusterWeight) -> None:
        """Append to the four lists."""
        target.request_headers_to_add.extend(self.request_add)
        target.request_headers_to_remove.extend(self.request_remove)
        target.response_headers_to_add.extend(self.response_add)
        target.response_headers_to_remove.extend(self.response_remove)


NO_OPERATIONS = HeaderOperations()


def header_operations(headers: api.Headers | None) -> HeaderOperations:
    """The operations of a ``headers`` block; a host among the headers to set or add becomes ``authority``."""
    if headers is None:
        return NO_OPERATIONS
    request, response = headers.request, headers.response
    return HeaderOperations(
        request_add=tuple(_changes(request)) if request is not None else (),
        request_remove=tuple(_ordinary(request.remove)) if request is not None else (),
        response_add=tuple(_changes(response)) if response is not None else (),
        response_remove=tuple(_ordinary(response.remove)) if response is not None else (),
        authority=(_authority(request.set) or _authority(request.add)) if request is not None else "",
    )


def _changes(operations: api.HeadersHeaderOperations) -> Iterator[base_pb2.HeaderValueOption]:
    for values, action in ((operations.set, OVERWRITE), (operations.add, APPEND)):
        for name in sorted(_ordinary(values)):
            header = base_pb2.HeaderValue(key=name, value=values[name])
            yield base_pb2.HeaderValueOption(header=header, append_action=action)


def _ordinary(names: Iterable[str]) -> Iterator[str]:
    """Header names without the host and pseudo headers: Envoy does not let these lists change them."""
    return (name for name in names if not name.startswith(":") and name.lower() != "host")


def _authority(values: Mapping[str, str]) -> str:
    return next((v for name, v in values.items() if name.lower() in ("host", ":authority")), "")
