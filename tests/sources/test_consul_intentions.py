"""Precedence of Consul's intentions: the destination's own before those of ``*``, in each the source's own first."""

from __future__ import annotations

from itertools import permutations

import pytest

from mesh_pilot.consul.mesh.entries import ConfigEntry
from mesh_pilot.consul.mesh.intentions import Intention, authorization_policy
from mesh_pilot.consul.mesh.reading import EntryReader
from mesh_pilot.consul.mesh.values import EntryRef, MeshSettings, ServiceFacts


class Nothing:
    """No entries, and services that do not say anything."""

    settings = MeshSettings()

    def entry(self, ref: EntryRef) -> ConfigEntry | None:
        return None

    def facts(self, service: str) -> ServiceFacts | None:
        return None


@pytest.mark.parametrize("own", [True, False])
def test_an_intention_on_the_service_comes_before_one_on_every_service(own: bool) -> None:
    given = [Intention("web", "db", own), Intention("web", "*", not own), Intention("*", "*", True)]
    for intentions in permutations(given):
        policy, problems = authorization_policy("db", intentions, EntryReader(Nothing()), default_allow=True)
        assert not problems
        assert (policy is None) is own
        if policy is not None:
            (rule,) = policy.spec["rules"]
            assert rule == {"from": [{"source": {"principals": ["cluster.local/ns/default/sa/web"]}}]}


class Connected(Nothing):
    """The same, with proxies of Consul's own mesh as callers."""

    settings = MeshSettings(trust_domain="1111.consul")


def test_callers_of_consuls_own_mesh_are_known_by_their_ids_of_whichever_datacenter() -> None:
    given = [Intention("web", "db", True), Intention("*", "*", False)]
    policy, _ = authorization_policy("db", given, EntryReader(Connected()), default_allow=True)
    assert policy is not None
    (rule,) = policy.spec["rules"]
    (source,) = [each["source"] for each in rule["from"]]
    assert source == {"notPrincipals": ["cluster.local/ns/default/sa/web", "*/svc/web"]}
