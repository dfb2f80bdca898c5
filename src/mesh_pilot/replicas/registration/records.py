"""Records of workloads, and the objects that they come to in the World."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import attrs
import msgspec

from mesh_pilot.api.istio.networking.v1alpha3 import WorkloadEntry
from mesh_pilot.model.config import Config, ConfigKey, Origin
from mesh_pilot.model.events import Item, WorkloadHealth
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.spiffe import parse_identity
from mesh_pilot.world.service_entries import AUTO_REGISTRATION, GROUP_ANNOTATION, HEALTH_ANNOTATION

MAX_NAME = 253
"""Characters in the name of an object. Longer ones lose their beginning, as in Istio."""

IDENTITY_ANNOTATION = "mesh-pilot/identity"
"""On an auto-registered WorkloadEntry: the SPIFFE id that was proven."""

MAX_TIME = 253402300800.0
"""The end of the year 9999 in Unix time, after which Python has none."""

API_VERSION = "networking.istio.io/v1"


@attrs.frozen(kw_only=True)
class RegisteredWorkload:
    """A workload as its stream claims it, after it was admitted."""

    key: ConfigKey
    """The workload's WorkloadEntry."""
    group: str = ""
    """The WorkloadGroup; empty for an entry that somebody has written, of which only the health is ours."""
    identity: str = ""
    address: str = ""
    network: str = ""
    locality: str = ""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    is_checked: bool = False
    """True if it gets no requests before it is reported healthy. It may be so by its group's probe, too."""


@attrs.frozen(kw_only=True)
class Record:
    """All that is known of a workload. It is made when the workload connects, and ends a while after it has left."""

    workload: RegisteredWorkload
    controller: str
    """The replica that the workload is, or was last, connected to."""
    turn: int = 1
    """Goes up each time that a replica takes it over."""
    is_connected: bool = True
    is_healthy: bool | None = None
    """The last report; None before the first."""
    reason: str = ""
    """Why it is not healthy."""
    created: float = 0.0
    """Unix time."""

    @property
    def key(self) -> ConfigKey:
        return self.workload.key


def entry_name(group: str, address: str, network: str) -> str:
    """The name of a WorkloadEntry, as in Istio: ``web-10.0.0.1-east``."""
    return "-".join(filter(None, (group, address.replace(":", "-"), network)))[-MAX_NAME:]


def items_of(record: Record) -> Iterator[Item]:
    """The objects of the World."""
    workload = record.workload
    if workload.group:
        identity = parse_identity(workload.identity)
        annotations = {GROUP_ANNOTATION: workload.group, IDENTITY_ANNOTATION: workload.identity}
        if workload.is_checked:
            annotations[HEALTH_ANNOTATION] = "true"
        yield Config(
            key=workload.key,
            spec=WorkloadEntry(
                address=workload.address,
                labels=dict(workload.labels),
                network=workload.network,
                locality=workload.locality,
                service_account=identity.service_account if identity is not None else "",
            ),
            created=datetime.fromtimestamp(record.created, UTC),
            labels=dict(workload.labels),
            annotations=annotations,
            api_version=API_VERSION,
            origin=Origin(AUTO_REGISTRATION, f"auto-registered {workload.key.namespace}/{workload.key.name}"),
        )
    if record.is_healthy is not None:
        yield WorkloadHealth(workload.key.namespace, workload.key.name, record.is_healthy, record.reason)


def records_of(items: Mapping[tuple[str, ...], Item], controller: str) -> Iterator[Record]:
    """The records that objects of an earlier run came from."""
    health = {(i.namespace, i.name): i for i in items.values() if isinstance(i, WorkloadHealth)}
    for item in items.values():
        if not isinstance(item, Config):
            continue
        found = health.pop((item.namespace, item.name), None)
        workload = RegisteredWorkload(
            key=item.key,
            group=item.annotations.get(GROUP_ANNOTATION, ""),
            identity=item.annotations.get(IDENTITY_ANNOTATION, ""),
            address=item.spec.address,
            network=item.spec.network,
            locality=item.spec.locality,
            labels=dict(item.labels),
            is_checked=HEALTH_ANNOTATION in item.annotations,
        )
        yield _restored(workload, controller, found, item.created.timestamp())
    for each in health.values():
        yield _restored(
            RegisteredWorkload(key=ConfigKey("WorkloadEntry", each.namespace, each.name)), controller, each, 0.0
        )


def _restored(workload: RegisteredWorkload, controller: str, health: WorkloadHealth | None, created: float) -> Record:
    return Record(
        workload=workload,
        controller=controller,
        is_healthy=health.is_healthy if health is not None else None,
        reason=health.reason if health is not None else "",
        created=created,
    )


def encode(record: Record) -> bytes:
    """The record as JSON."""
    found = attrs.asdict(record)
    found["workload"]["key"] = list(record.key)
    found["workload"]["labels"] = dict(record.workload.labels)
    return json.dumps(found, sort_keys=True).encode()


def decode(data: bytes) -> Record:
    """Raises ValueError for anything that is not a record."""
    try:
        record = _decoder.decode(data)
        found = json.loads(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not (found.keys() <= _FIELDS and found["workload"].keys() <= _WORKLOAD_FIELDS):
        raise ValueError("it has a field that no record has")
    if record.key.kind != "WorkloadEntry":
        raise ValueError("it is of no WorkloadEntry")
    if record.workload.group and not is_ip(record.workload.address):
        raise ValueError("invalid address")
    if not 0.0 <= record.created < MAX_TIME:
        raise ValueError("the time is out of range")
    return record


_decoder = msgspec.json.Decoder(Record)
_FIELDS, _WORKLOAD_FIELDS = (frozenset(attrs.fields_dict(kind)) for kind in (Record, RegisteredWorkload))
