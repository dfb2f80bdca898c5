"""Rules for WorkloadEntry, and for endpoints, which are written alike."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.networking.v1alpha3 import WorkloadEntry
from mesh_pilot.config.validation.context import Context, check, error
from mesh_pilot.config.validation.names import (
    UNIX_PREFIX,
    check_labels,
    dns_label_reason,
    fqdn_or_ip_reason,
    port_reason,
    unix_path_reason,
)
from mesh_pilot.model.config import Problem


def validate(spec: WorkloadEntry, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a WorkloadEntry."""
    yield from check_address("spec", spec)
    yield from check_details("spec", spec)


def check_address(path: str, entry: WorkloadEntry) -> Iterator[Problem]:
    """The address: an IP address, a host name, `unix://` and a path, or nothing in a network with a gateway."""
    if not entry.address:
        if not entry.network:
            yield error(f"{path}.address", "is missing; only an entry with a network can do without")
    elif entry.address.startswith(UNIX_PREFIX):
        yield from check(f"{path}.address", unix_path_reason(entry.address.removeprefix(UNIX_PREFIX)))
        if entry.ports:
            yield error(f"{path}.ports", "a Unix socket has no ports")
    else:
        yield from check(f"{path}.address", fqdn_or_ip_reason(entry.address))


def check_details(path: str, entry: WorkloadEntry) -> Iterator[Problem]:
    """All but the address, which a WorkloadGroup's template does not have."""
    for name, number in entry.ports.items():
        yield from check(f"{path}.ports[{name}]", dns_label_reason(name) or port_reason(number))
    yield from check_labels(f"{path}.labels", entry.labels)
    if entry.locality.count("/") > 2:
        yield error(f"{path}.locality", f'"{entry.locality}" is not of the form region/zone/subzone')
