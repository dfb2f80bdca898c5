"""Names that bind resources to each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.envoy.core.protobuf import SECRET_FETCH_TIMEOUT, duration, sds_secret
from mesh_pilot.mesh.names.resources import (
    ClusterName,
    Direction,
    credential,
    credential_roots,
    file_certificate,
    file_roots,
    inbound,
    outbound,
    outbound_sni,
    parse_cluster,
)

words = st.from_regex(r"[a-z0-9-]{0,8}", fullmatch=True)


@given(direction=st.sampled_from(Direction), port=st.integers(0, 65535), subset=words, host=words)
def test_a_clusters_name_is_read_back_in_both_spellings(
    direction: Direction, port: int, subset: str, host: str
) -> None:
    name = ClusterName(direction, port, subset, f"{host}.example.com")
    assert parse_cluster(str(name)) == name
    assert parse_cluster(name.sni) == name


def test_clusters_are_spelled_as_istio_spells_them() -> None:
    assert outbound("reviews.test", 9080, "v1") == "outbound|9080|v1|reviews.test"
    assert outbound_sni("reviews.test", 9080) == "outbound_.9080_._.reviews.test"
    assert inbound(8080) == "inbound|8080||"


@pytest.mark.parametrize("name", ["", "BlackHoleCluster", "outbound|80|a", "sideways|80||a", "outbound|-1||a"])
def test_other_names_are_no_clusters_of_services(name: str) -> None:
    assert parse_cluster(name) is None


def test_secrets_are_named_after_files_and_credentials() -> None:
    assert file_certificate("/a.pem", "/a.key") == "file-cert:/a.pem~/a.key"
    assert file_roots("/ca.pem") == "file-root:/ca.pem"
    assert credential("partner") == credential("kubernetes://partner") == "kubernetes://partner"
    assert credential_roots("partner") == "kubernetes://partner-cacert"


def test_only_the_mesh_identity_is_waited_for_without_end() -> None:
    assert sds_secret("default").sds_config.initial_fetch_timeout == duration(SECRET_FETCH_TIMEOUT * 0)
    assert sds_secret("kubernetes://partner").sds_config.initial_fetch_timeout == duration(SECRET_FETCH_TIMEOUT)
