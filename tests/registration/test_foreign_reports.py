"""A workload's health is reported on its own: an account of its name in a foreign trust domain is somebody else."""

from __future__ import annotations

import pytest

from mesh_pilot.replicas.registration.admission import reported_entries
from tests.registration.test_admission import DOMAINS, PLAIN, SERVICE, WRITTEN, node
from tests.support.worlds import world_of


@pytest.mark.parametrize(("domain", "names"), [("cluster.local", ["vm"]), ("old.local", ["vm"]), ("other.test", [])])
def test_only_identities_of_this_mesh_report_of_its_entries(domain: str, names: list[str]) -> None:
    world = world_of(SERVICE + WRITTEN.replace("NAME", "vm").replace("ADDRESS", "10.0.0.1"))
    proxy = node("10.0.0.1", domain=domain)
    found = reported_entries(proxy, "10.0.0.1:4000", world, DOMAINS, PLAIN)
    assert [key.name for key in found] == names
