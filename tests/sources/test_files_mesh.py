"""mesh.yaml and the networks file."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mesh_pilot.model.config import ConfigError, Origin
from mesh_pilot.model.events import Delete, MeshConfigValue, MeshNetworksValue
from mesh_pilot.sources.base.published import InvalidObject
from mesh_pilot.sources.files import FileTiming
from mesh_pilot.sources.files.mesh import load_mesh_config, load_mesh_networks, mesh_config, mesh_networks, mesh_source
from mesh_pilot.sources.files.roots import FileRoot
from tests.sources.conformance import Follower, running

NETWORKS = """\
networks:
  east:
    endpoints:
    - fromCidr: 10.0.0.0/8
    gateways:
    - address: 1.2.3.4
      port: 15443
"""


def trust_domain(follower: Follower) -> str:
    value = follower.picture.items[("mesh",)]
    assert isinstance(value, MeshConfigValue)
    return str(value.config.trust_domain)


async def test_both_files_are_read_and_followed(tmp_path: Path) -> None:
    mesh, networks = tmp_path / "mesh.yaml", tmp_path / "networks.yaml"
    mesh.write_text("trustDomain: example.org\n")
    networks.write_text(NETWORKS)
    async with running(mesh_source(str(mesh), str(networks))) as follower:
        await follower.until_synced()
        assert trust_domain(follower) == "example.org"
        value = follower.picture.items[("networks",)]
        assert isinstance(value, MeshNetworksValue)
        assert set(value.networks.networks) == {"east"}
        mesh.write_text("trustDomain: example.com\n")
        await follower.until(lambda picture: trust_domain(follower) == "example.com")


def test_what_is_doubtful_in_a_good_file_comes_with_its_line(tmp_path: Path) -> None:
    item = mesh_config("trustDomain: a.example\nenablePrometheusMerge: true\n", Origin("mesh", "mesh.yaml"))
    (warning,) = item.warnings
    assert (warning.path, warning.line, str(item.origin)) == ("enablePrometheusMerge", 2, "mesh.yaml")
    gateways = "networks: {east: {endpoints: [{fromRegistry: Consul}], gateways: [{address: a.example, port: 1}]}}"
    assert mesh_networks(gateways, Origin("mesh", "networks.yaml")).origin.location == "networks.yaml"


async def test_a_file_that_goes_bad_or_away_is_rejected_and_the_last_good_one_stays(tmp_path: Path) -> None:
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text("trustDomain: example.org\n")
    async with running(mesh_source(str(mesh))) as follower:
        await follower.until_synced()
        mesh.write_text("enablePrometheusMerge: true\nconnectTimeout: soon\n")
        await follower.until(lambda picture: bool(picture.rejected))
        (rejected,) = follower.picture.rejected.values()
        assert str(rejected.origin) == f"{mesh}:2"
        assert rejected.problems[0].path == "connectTimeout"
        assert trust_domain(follower) == "example.org"
        mesh.unlink()
        await follower.until(lambda picture: any(r.key is None for r in picture.rejected.values()))
        mesh.write_text("trustDomain: example.net\n")
        await follower.until(lambda picture: not picture.rejected)
        assert trust_domain(follower) == "example.net"
        assert not any(isinstance(event, Delete) for event in follower.events)


async def test_an_empty_file_means_the_defaults_only_once_it_has_stood(tmp_path: Path, mock_clock: MockClock) -> None:
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text("trustDomain: example.org\n")
    source = mesh_source(str(mesh))
    async with running(source) as follower:
        await follower.until_synced()
        mesh.write_text("\n")
        while not source.statistics().pending:
            await trio.lowlevel.checkpoint()
        mock_clock.jump(1)
        await follower.until(lambda picture: bool(picture.rejected))
        assert trust_domain(follower) == "example.org"
        mock_clock.jump(FileTiming().empty_seconds)
        await follower.until(lambda picture: not picture.rejected)
        assert trust_domain(follower) == "cluster.local"


async def test_a_file_of_a_mounted_config_map_is_followed_when_it_is_swapped(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "mesh").write_text(f"trustDomain: v{number}.org\n")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "mesh").symlink_to("..data/mesh")
    async with running(mesh_source(str(tmp_path / "mesh"))) as follower:
        await follower.until_synced()
        (tmp_path / "next").symlink_to("..2")
        (tmp_path / "next").rename(tmp_path / "..data")
        await follower.until(lambda picture: trust_domain(follower) == "v2.org")


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text("# nothing\n")
    assert load_mesh_config(str(tmp_path / "mesh.yaml")).connect_timeout == timedelta(seconds=10)
    assert load_mesh_networks(str(tmp_path / "mesh.yaml")).networks == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"trustDomain: a: b", "mesh.yaml:1: not valid YAML"),
        (b"ingressClass: x\nnonsense: 1\n", "mesh.yaml:2: nonsense: "),
        (b"ingressClass: x\n---\ningressClass: y\n", "mesh.yaml:3: a second document"),
        (b"\xff", "mesh.yaml: is not UTF-8 text"),
        (b"- 1\n", "mesh.yaml:1: "),
        (None, "mesh.yaml: can't be read: No such file or directory"),
    ],
)
def test_a_wrong_file_is_a_clear_error_at_the_start(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "mesh.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_mesh_config(str(file))
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_an_internal_error_is_a_rejection_of_the_file() -> None:
    def decode(text: str, origin: Origin) -> MeshConfigValue:
        raise ZeroDivisionError("oops")

    (entry,) = FileRoot("mesh.yaml", "mesh", decode, ("mesh",)).parse("mesh.yaml", {"": b""})
    assert isinstance(entry, InvalidObject)
    assert entry.key == ("mesh",)
    assert "ZeroDivisionError: oops" in entry.problems[0].reason
