"""Which registries flags and environment name, and in which order they are read."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
import yaml

from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.discovery.command import command
from mesh_pilot.cli.discovery.registries import registries_of
from mesh_pilot.istio.kubernetes.cluster_sets import ClusterSetMode
from mesh_pilot.kubernetes.source import KubernetesRegistry
from mesh_pilot.model.flags import built
from mesh_pilot.sources.base.contract import Registry


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    contexts = [{"name": name, "context": {"cluster": name}} for name in ("one", "two")]
    clusters = [{"name": name, "cluster": {"server": f"http://{name}.test"}} for name in ("one", "two")]
    path.write_text(yaml.safe_dump({"current-context": "one", "contexts": contexts, "clusters": clusters}))
    return str(path)


def taken(*arguments: str, **environment: str) -> list[Registry]:
    context = command.make_context("discovery", list(arguments))
    return list(registries_of(context.params, built(Settings, context.params), environment))


def origins(*arguments: str, **environment: str) -> list[str]:
    return [origin for registry in taken(*arguments, **environment) for origin in registry.origins()]


CONSUL = ("--consul-server-url", "http://consul.test:8500")
OF_CONSUL, OF_ONE, OF_TWO = (
    "Consul at http://consul.test:8500",
    "Kubernetes at http://one.test",
    "Kubernetes at http://two.test",
)


def test_registries_are_those_that_flags_name_in_the_order_of_registries(kubeconfig: str) -> None:
    kube = ("--kubeconfig", kubeconfig)
    assert origins() == []
    assert origins(*kube) == [OF_ONE]
    assert origins(*kube, "--context", "two") == [OF_TWO]
    assert origins(*CONSUL, *kube) == [OF_CONSUL, OF_ONE]
    assert origins(*CONSUL, *kube, "--registries", "kubernetes,consul") == [OF_ONE, OF_CONSUL]
    assert origins(*CONSUL, *kube, "--registries", "Kubernetes") == [OF_ONE]
    (left_out,) = (r for r in taken(*CONSUL, *kube, "--registries", "Consul") if isinstance(r, KubernetesRegistry))
    assert not left_out.has_services, "its configuration is read"


def test_a_cluster_has_the_name_that_istiods_flag_gives_it(kubeconfig: str) -> None:
    for flag in ("--clusterID", "--cluster-id"):
        (found,) = taken("--kubeconfig", kubeconfig, flag, "east", "--domain", "mesh.test", "--namespace", "mesh")
        assert isinstance(found, KubernetesRegistry)
        assert (found.cluster_id, found.domain, found.system_namespace) == ("east", "mesh.test", "mesh")
        assert found.sources()[0].name == "kubernetes/east"


def test_the_cluster_set_is_that_of_the_flag_or_of_istiods_variables(kubeconfig: str) -> None:
    def mode(*flags: str, **environment: str) -> ClusterSetMode:
        (found,) = taken("--kubeconfig", kubeconfig, *flags, **environment)
        assert isinstance(found, KubernetesRegistry)
        return found.cluster_set

    discovery, host = {"ENABLE_MCS_SERVICE_DISCOVERY": "true"}, {"ENABLE_MCS_HOST": "true"}
    assert mode() is ClusterSetMode.OFF
    assert mode(**discovery) is ClusterSetMode.EXPORTS
    assert mode(**discovery, **host) is ClusterSetMode.HOSTS
    assert mode(**host) is ClusterSetMode.OFF, "it needs the other"
    assert mode("--cluster-set", "strict") is ClusterSetMode.STRICT


def test_what_can_not_be_is_one_line(kubeconfig: str, tmp_path: Path) -> None:
    for arguments, words in (
        (["--registries", "Eureka"], "'Eureka' is not a registry: Consul, Kubernetes"),
        (["--registries", "Consul"], "--registries names Consul: name a Consul with --consul-server-url"),
        (["--context", "two"], "--context needs --kubeconfig"),
        (["--kubeconfig", str(tmp_path / "nowhere")], "--kubeconfig: cannot read the kubeconfig"),
        (["--kubeconfig", kubeconfig, "--cluster-id", ""], "--cluster-id: a cluster needs a name"),
    ):
        with pytest.raises(click.UsageError) as error:
            taken(*arguments)
        assert words in error.value.message
