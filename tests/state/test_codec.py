"""Items to bytes and back: nothing is lost, and bytes that are not item are refused."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks, Network
from mesh_pilot.api.istio.networking.v1alpha3 import ServiceEntry, WorkloadEntry
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.reading.decode import decode_document
from mesh_pilot.istio.reading.mesh import default_mesh
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.model.config import Config, ConfigKey, Origin, Problem, Severity
from mesh_pilot.model.events import (
    ChallengeAnswer,
    Challenges,
    Endpoints,
    Grant,
    Item,
    KeySet,
    MeshConfigValue,
    MeshNetworksValue,
    Quarantine,
    Refusal,
    ResolvedHost,
    Secret,
    Withheld,
    item_key,
)
from mesh_pilot.model.service import (
    Endpoint,
    Health,
    Locality,
    Port,
    Protocol,
    Registration,
    Resolution,
    Service,
    ServiceKey,
    TrafficDistribution,
)
from mesh_pilot.safety.state.codec import FORMAT, CodecError, decode, decode_key, encode, encode_key
from tests.support.protos import compiled, message_classes, our_class, variants

ORIGIN = Origin("files", "/etc/mesh/ü.yaml", 12)
WARNINGS = (Problem("spec.hosts[0]", "odd", Severity.WARNING, 3), Problem("", "bad"))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
labels = st.dictionaries(texts, texts, max_size=3)
times = st.datetimes(timezones=st.just(UTC))
numbers = st.integers(0, 2**32 - 1)
ports = st.builds(Port, numbers, texts, st.sampled_from(Protocol), numbers, texts)
keys = st.builds(ConfigKey, texts, texts, texts)
endpoints = st.builds(
    Endpoint,
    texts,
    numbers,
    texts,
    labels=labels,
    locality=st.builds(Locality, texts, texts, texts),
    network=texts,
    cluster_id=texts,
    weight=numbers,
    service_account=texts,
    tls_mode=texts,
    namespace=texts,
    workload=texts,
    node=texts,
    host_name=texts,
    health=st.sampled_from(Health),
    registration=st.none() | st.builds(Registration, texts, texts, texts),
)
tuples = st.lists(texts, max_size=3).map(tuple)
services = st.builds(
    Service,
    texts,
    texts,
    ports=st.lists(ports, max_size=3).map(tuple),
    addresses=tuples,
    resolution=st.sampled_from(Resolution),
    external=st.booleans(),
    export_to=st.frozensets(texts, max_size=3),
    labels=labels,
    selector=labels,
    subject_alt_names=tuples,
    created=times,
    registry=texts,
    declared_by_users=st.booleans(),
    headless=st.booleans(),
    namespaced_name=st.booleans(),
    traffic_distribution=st.sampled_from(TrafficDistribution),
    node_local=st.booleans(),
    config=st.none() | keys,
    auto_address=texts,
    cluster_id=texts,
    external_addresses=tuples,
    external_ports=st.lists(st.tuples(numbers, numbers), max_size=2).map(tuple),
)
secrets = st.builds(
    Secret,
    texts,
    texts,
    st.binary(max_size=9),
    st.binary(max_size=9),
    st.binary(max_size=9),
    st.binary(max_size=9),
    st.lists(st.builds(Grant, texts, texts), max_size=2).map(tuple),
    st.booleans(),
)
origins = st.builds(Origin, texts, texts, numbers)
problems = st.lists(st.builds(Problem, texts, texts, st.sampled_from(Severity), numbers), max_size=2).map(tuple)
configs = st.builds(
    lambda key, *more: Config(ConfigKey("WorkloadEntry", *key[1:]), *more),
    keys,
    st.builds(WorkloadEntry, texts, st.dictionaries(texts, numbers, max_size=2), labels, texts, texts, numbers, texts),
    times,
    labels,
    labels,
    labels.map(MappingProxyType),
    texts,
    origins,
    problems,
)
simple = st.one_of(
    services,
    st.builds(Endpoints, st.builds(ServiceKey, texts, texts), st.lists(endpoints, max_size=3).map(tuple)),
    secrets,
    st.builds(KeySet, texts, texts, texts),
    st.builds(ResolvedHost, texts, tuples),
    st.builds(Challenges, st.lists(st.builds(ChallengeAnswer, texts, texts, texts), max_size=2).map(tuple)),
    configs,
    st.builds(MeshConfigValue, st.builds(MeshConfig, root_namespace=texts), origins, problems, tuples),
    st.builds(
        MeshNetworksValue,
        st.builds(MeshNetworks, st.dictionaries(texts, st.builds(Network), max_size=2)),
        origins,
        problems,
        tuples,
    ),
)
refusals = st.builds(Refusal, texts, texts, texts, tuples, texts, times)
some = st.lists(simple, max_size=2).map(tuple)
quarantines = st.builds(
    Quarantine, texts, st.lists(st.builds(Withheld, tuples, some, some, refusals, tuples), max_size=2).map(tuple)
)


def same(one: Item, other: Item) -> bool:
    """True if nothing was lost: also what does not count for equality."""
    return repr(_plain(one)) == repr(_plain(other)) and one == other


def _plain(item: object) -> object:
    if isinstance(item, Quarantine):
        return [(w, w.refusal, w.fields, [*map(_plain, (*w.refused, *w.served))]) for w in item.withheld]
    if isinstance(item, Config):
        return (item.key, bytes(item.spec), item.origin, item.warnings, item.api_version)
    if isinstance(item, MeshConfigValue | MeshNetworksValue):
        return (item.origin, item.warnings, item.passed)
    return (item, getattr(item, "private_key", None))


@given(simple | quarantines)
def test_an_item_is_read_back_as_it_was_written(item: Item) -> None:
    found = decode(encode(item))
    assert found == item
    assert item_key(found) == item_key(item)
    if not isinstance(item, Quarantine | Service):
        assert same(found, item)


@given(st.lists(texts, max_size=4).map(tuple))
def test_a_key_is_read_back_as_it_was_written(key: tuple[str, ...]) -> None:
    assert decode_key(encode_key(key)) == key


def test_every_field_of_every_kind_is_read_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    kinds = {kind.message: kind.name for kind in KINDS.values()}
    seen = set()
    for name, theirs in message_classes(compiled(tmp_path_factory.getbasetemp())).items():
        ours = our_class(name)
        for message in variants(theirs):
            spec = ours.parse(message.SerializeToString())
            if ours in kinds:
                item: Item = Config(ConfigKey(kinds[ours], "a", "b"), spec, origin=ORIGIN, warnings=WARNINGS)
            elif ours is MeshConfig:
                item = MeshConfigValue(spec, ORIGIN, WARNINGS, ("a",))
            else:
                continue
            seen.add(ours)
            found = decode(encode(item))
            assert same(found, item), name
    assert seen >= {*kinds} - {our_class("istio.networking.v1beta1.ProxyConfig")}


def test_objects_as_people_write_them_are_read_back() -> None:
    count = 0
    for path in sorted((Path(__file__).parents[1] / "golden").glob("*/config.yaml")):
        for document in load(path.read_text(encoding="utf-8"), ORIGIN):
            assert isinstance(document, Document)
            if document.data["kind"] in KINDS:
                config = decode_document(document, origin=ORIGIN)
                assert same(decode(encode(config)), config)
                count += 1
    assert count > 100


def test_what_neighbours_in_a_list_have_in_common_is_in_memory_once() -> None:
    labels = ({"app": "reviews"}, {"app": "reviews"}, {"app": "ratings"}, {"app": "reviews"})
    endpoints = [WorkloadEntry(address=f"10.0.0.{n}", labels=each, network="far") for n, each in enumerate(labels)]
    found = decode(encode(Config(ConfigKey("ServiceEntry", "a", "b"), ServiceEntry(endpoints=endpoints))))
    assert isinstance(found, Config)
    first, second, third, fourth = found.spec.endpoints
    assert first.labels is second.labels
    assert third.labels == {"app": "ratings"} and fourth.labels == {"app": "reviews"}
    assert first.network is second.network is third.network is fourth.network
    assert [each.address for each in found.spec.endpoints] == [f"10.0.0.{number}" for number in range(4)]


def test_the_default_mesh_is_read_back() -> None:
    mesh = default_mesh("istio-system")
    found = decode(encode(MeshConfigValue(mesh)))
    assert isinstance(found, MeshConfigValue)
    assert found.config == mesh


def test_fields_that_only_the_sender_knows_are_not_lost() -> None:
    strange = WorkloadEntry.parse(bytes(WorkloadEntry(address="10.0.0.1")) + b"\xf8\x3f\x05")
    for spec in (ServiceEntry(endpoints=[WorkloadEntry(), strange]), ServiceEntry.parse(b"\xf8\x3f\x05")):
        found = decode(encode(Config(ConfigKey("ServiceEntry", "a", "b"), spec)))
        assert isinstance(found, Config)
        assert bytes(found.spec) == bytes(spec)


@pytest.mark.parametrize(
    "data", [b"", b"\xc0", b"abc", b"\x92\xa6config\xc0", b"\x92\xa5other\x80", b"\x92\xa6secret\x80"]
)
def test_bytes_that_are_no_item_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(data)


@given(simple, st.data())
def test_bytes_that_were_cut_are_refused(item: Item, data: st.DataObject) -> None:
    whole = encode(item)
    with pytest.raises(CodecError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize(
    "item",
    [
        KeySet("lone \ud800", ""),
        Config(ConfigKey("ServiceEntry", "a", "b"), WorkloadEntry()),
        Config(ConfigKey("Unknown", "a", "b"), WorkloadEntry()),
        Config(ConfigKey("WorkloadEntry", "a", "b"), WorkloadEntry(labels=None)),  # type: ignore[arg-type]  on purpose
    ],
    ids=["surrogate", "another message", "unknown kind", "no map"],
)
def test_an_item_that_cannot_be_written_is_refused_with_its_name(item: Item) -> None:
    with pytest.raises(CodecError, match=r"cannot be written|cannot be read"):
        decode(encode(item))


def test_times_keep_their_microseconds() -> None:
    at = datetime(2024, 2, 29, 23, 59, 59, 999999, UTC)
    found = decode(encode(Service("a", "b", created=at)))
    assert isinstance(found, Service)
    assert found.created == at


LAYOUT = "9a7a7709909f"


def test_another_layout_has_another_format() -> None:
    """If it fails: can `decode` read the bytes of before? If not, raise FORMAT. Then put the new digest here."""
    of_services = (Service, Port, Endpoints, Endpoint, Registration, Locality)
    of_others = (Secret, Grant, KeySet, MeshConfigValue, MeshNetworksValue, Refusal)
    classes = (Config, ConfigKey, Origin, Problem, *of_services, *of_others)
    fields = [(each.__name__, [*each.__annotations__.items()]) for each in classes]
    assert hashlib.sha256(repr((FORMAT, fields)).encode()).hexdigest()[:12] == LAYOUT
