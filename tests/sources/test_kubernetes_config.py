"""What a control plane reads in a Kubernetes: kinds, revisions, credentials, the mesh config, namespaces."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
from trio.testing import MockClock

from mesh_pilot.istio.kinds import ISTIO_KINDS, KINDS
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource
from mesh_pilot.kubernetes.source import ConfigSelection, KubernetesSource
from mesh_pilot.kubernetes.source.discovery import CRDS, DOUBT_SECONDS, IDLE_SECONDS
from mesh_pilot.kubernetes.source.mesh_maps import CONFIG_MAPS, MeshMapNames
from mesh_pilot.kubernetes.source.readers import SecretReader, resource_of
from mesh_pilot.kubernetes.source.secret_accounts import Ruling, SecretAccounts
from mesh_pilot.kubernetes.source.source import NAMESPACES
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Delete, Grant, MeshConfigValue, MeshNetworksValue, Replace, Secret, Upsert
from tests.sources.conformance import Follower
from tests.support.api_double import IN_MEMORY, ApiDouble
from tests.support.certificates import write_certificates

SECRETS = SecretReader.resource
RULES, ENTRIES = (resource_of(KINDS[name]) for name in ("DestinationRule", "ServiceEntry"))
GATEWAYS = resource_of(KINDS["HTTPRoute"])
MESH, NETWORKS = ("mesh",), ("networks",)


@attrs.define
class Reading:
    """A double, the source that reads it, and what it tells."""

    api: ApiDouble
    source: KubernetesSource
    follower: Follower

    @property
    def items(self) -> Mapping[tuple[str, ...], Any]:
        return self.follower.picture.items

    @property
    def configs(self) -> set[str]:
        return {"/".join(key[2:]) for key in self.items if key[0] == "config" and key[1] != "Namespace"}

    async def settle(self) -> None:
        """Take all that is told within a minute."""
        with trio.move_on_after(60):
            await self.follower.until(lambda picture: False)

    def rule(self, name: str, namespace: str = "shop", **metadata: Any) -> None:
        self.api.put(
            RULES, {"metadata": {"name": name, "namespace": namespace, **metadata}, "spec": {"host": f"{name}.com"}}
        )

    def namespace(self, name: str, **labels: str) -> None:
        self.api.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})

    def mesh(self, name: str = "istio", namespace: str = "istio-system", **texts: str) -> None:
        self.api.put(CONFIG_MAPS, {"metadata": {"name": name, "namespace": namespace}, "data": texts})


@asynccontextmanager
async def reading(
    served: Iterable[ApiResource] = (RULES,), accounts: SecretAccounts | None = None, **selection: Any
) -> AsyncIterator[Reading]:
    api = ApiDouble([*served, CRDS, NAMESPACES, CONFIG_MAPS, SECRETS])
    source = KubernetesSource(
        IN_MEMORY,
        selection=ConfigSelection(**selection),
        accounts=accounts,
        client=partial(ApiClient, transport=api.transport()),
    )
    send, receive = trio.open_memory_channel[Any](0)
    async with trio.open_nursery() as nursery, send, receive:
        found = Reading(api, source, Follower(receive))
        yield found
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def started(found: Reading) -> AsyncIterator[None]:
    """The source at work."""
    async with trio.open_nursery() as nursery:
        send, found.follower.channel = trio.open_memory_channel[Any](0)
        async with send:
            await nursery.start(found.source.run, send)
            await found.settle()
            yield
            nursery.cancel_scope.cancel()


async def test_kinds_come_and_go_with_their_crds(autojump_clock: MockClock) -> None:
    async with reading() as found:
        found.rule("reviews")
        async with started(found):
            assert found.follower.picture.synced == 1
            assert found.configs == {"shop/reviews"}
            missing = found.source.statistics().missing
            assert "ServiceEntry" in missing
            assert "DestinationRule" not in missing
            assert "ServiceRole" not in missing, "nobody misses what Istio removed"
            found.api.serve(ENTRIES)
            entry = {"hosts": ["a.com"], "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]}
            found.api.put(ENTRIES, {"metadata": {"name": "a", "namespace": "shop"}, "spec": entry})
            before = len(found.api.requests)
            found.api.put(CRDS, {"metadata": {"name": "serviceentries.networking.istio.io"}})
            with trio.fail_after(1):
                await found.follower.until(lambda picture: len(picture.items) == 2)
            assert len(found.api.requests) - before < 30
            found.api.withdraw(RULES)
            found.api.remove(CRDS, "serviceentries.networking.istio.io")
            await found.settle()
            assert found.configs == {"shop/a"}
            assert "DestinationRule" in found.source.statistics().missing


async def test_objects_stay_while_a_server_that_starts_does_not_know_all_kinds_yet(autojump_clock: MockClock) -> None:
    async with reading() as found:
        found.rule("reviews")
        found.api.put(CRDS, {"metadata": {"name": "destinationrules.networking.istio.io"}})
        for is_watched in (True, False):
            async with started(found):
                assert found.configs == {"shop/reviews"}
                if not is_watched:
                    found.api.forbid("customresourcedefinitions")
                    found.api.end_watches("customresourcedefinitions")
                await found.settle()
                found.api.resources.remove(RULES)  # while what reads its objects does not ask
                found.source._crds.wake()
                await trio.sleep(DOUBT_SECONDS - 1)
                found.api.serve(RULES)
                await found.settle()
                assert not [event for event in found.follower.events if isinstance(event, Delete)]
                found.api.allow("customresourcedefinitions")
        found.api.withdraw(RULES)
        async with started(found):
            assert found.configs == set(), "they have gone while it did not run"
            assert found.source.statistics().items == 0


async def test_crds_are_watched_again_after_the_server_was_away(autojump_clock: MockClock) -> None:
    async with reading() as found, started(found):
        found.api.cut_watches()
        await trio.sleep(60)
        before = found.api.requests.count("GET /apis")
        await trio.sleep(3600)
        assert found.api.requests.count("GET /apis") - before <= 3600 / IDLE_SECONDS + 1


async def test_a_crd_is_asked_for_until_the_server_serves_it(autojump_clock: MockClock) -> None:
    async with reading() as found, started(found):
        found.api.put(CRDS, {"metadata": {"name": "serviceentries.networking.istio.io"}})
        await trio.sleep(3)
        found.api.serve(ENTRIES)
        await trio.sleep(5)
        assert "ServiceEntry" not in found.source.statistics().missing


async def test_crds_that_may_not_be_watched_are_found_within_half_a_minute(autojump_clock: MockClock) -> None:
    async with reading() as found:
        found.api.forbid("customresourcedefinitions")
        async with started(found):
            found.api.serve(ENTRIES)
            await trio.sleep(31)
            assert "ServiceEntry" not in found.source.statistics().missing


async def test_kinds_of_other_apis_that_may_not_be_read_do_not_hold_up_the_start(autojump_clock: MockClock) -> None:
    async with reading([RULES, GATEWAYS]) as found:
        found.rule("reviews")
        found.api.forbid("httproutes")
        async with started(found):
            assert found.configs == {"shop/reviews"}
            assert "403" in found.source.statistics().trouble
    async with reading([RULES, GATEWAYS]) as found:
        found.api.forbid("destinationrules")
        async with started(found):
            assert found.follower.picture.synced == 0
            assert "403" in found.source.statistics().waiting_for


async def test_every_kind_is_read_in_the_newest_version_that_both_sides_know(autojump_clock: MockClock) -> None:
    old = attrs.evolve(RULES, versions=("v1alpha3", "v1beta1", "v2"))
    async with reading([old]) as found:
        found.rule("reviews")
        async with started(found):
            assert found.items[("config", "DestinationRule", "shop", "reviews")].api_version.endswith("v1beta1")


async def test_objects_of_another_revision_are_not_read(autojump_clock: MockClock) -> None:
    async with reading(revision="canary") as found:
        found.rule("everybodys")
        found.rule("ours", labels={"istio.io/rev": "canary"})
        found.rule("others", labels={"istio.io/rev": "stable"})
        async with started(found):
            assert found.configs == {"shop/everybodys", "shop/ours"}
            assert found.source.statistics().other_revisions == 1
            found.rule("ours", labels={"istio.io/rev": "stable"})
            found.rule("others", labels={"istio.io/rev": "canary"})
            await found.settle()
            assert found.configs == {"shop/everybodys", "shop/others"}
    async with reading() as found:
        found.rule("others", labels={"istio.io/rev": "stable"})
        async with started(found):
            assert found.configs == {"shop/others"}, "without a revision, all objects are read"


async def test_a_status_that_is_written_costs_no_decoding_and_no_event(autojump_clock: MockClock) -> None:
    async with reading() as found:
        found.rule("reviews")
        async with started(found):
            found.follower.take_events()
            reader = found.source._readers[RULES]
            reader.read = None  # type: ignore[method-assign,assignment]  # would fail
            was = found.api.find(RULES, "reviews", "shop")
            assert was is not None
            found.api.put(RULES, {**was, "status": {"conditions": []}})
            await found.settle()
            assert found.follower.take_events() == []
            assert not found.source.statistics().trouble


async def test_credentials_are_read_in_every_form_and_other_secrets_are_not_held(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    files = write_certificates(tmp_path, "shop")
    assert files.certificate and files.key and files.ca
    chain, key, ca = (base64.b64encode(f.read_bytes()).decode() for f in (files.certificate, files.key, files.ca))
    secrets = {
        "tls": ("kubernetes.io/tls", {"tls.crt": chain, "tls.key": key, "ca.crt": ca}),
        "generic": ("Opaque", {"cert": chain, "key": key, "cacert": ca}),
        "tls-cacert": ("Opaque", {"ca.crt": ca}),
        "password": ("Opaque", {"key": "c2VjcmV0"}),
        "token": ("kubernetes.io/service-account-token", {"ca.crt": ca, "token": key}),
        "bad": ("kubernetes.io/tls", {"tls.crt": chain}),
    }
    async with reading(secrets=True) as found:
        for name, (kind, data) in secrets.items():
            found.api.put(SECRETS, {"metadata": {"name": name, "namespace": "shop"}, "type": kind, "data": data})
        found.mesh("roots", "shop", **{"ca.crt": files.ca.read_text(encoding="ascii")})
        found.mesh("else", "shop", a="b")
        async with started(found):
            held = {key[2]: item for key, item in found.items.items() if isinstance(item, Secret)}
            assert set(held) == {"tls", "generic", "tls-cacert", "configmap/roots"}
            assert held["tls"] == attrs.evolve(held["generic"], name="tls")
            assert held["tls-cacert"].ca_certificates == files.ca.read_bytes()
            (refused,) = found.follower.picture.rejected.values()
            assert "secrets shop/bad" in refused.origin.location
            listed = next(r for r in found.api.requests if "/secrets?" in r)
            assert "service-account-token" in listed and "helm.sh" in listed, "the server is asked not to send them"
            everything = f"{found.source!r} {found.source.statistics()} {held} {refused}"
            assert "PRIVATE KEY" not in everything and key not in everything


async def test_a_key_is_granted_to_accounts_that_may_read_secrets(autojump_clock: MockClock, tmp_path: Path) -> None:
    files = write_certificates(tmp_path, "shop")
    data = {"tls.crt": files.certificate, "tls.key": files.key}
    encoded = {name: base64.b64encode(path.read_bytes()).decode() for name, path in data.items()}
    accounts = SecretAccounts(lambda: ())
    async with reading(accounts=accounts, secrets=True) as found:
        for namespace in ("shop", "bank"):
            metadata = {"name": "edge", "namespace": namespace, "annotations": {"mesh-pilot/grants": "vm"}}
            found.api.put(SECRETS, {"metadata": metadata, "type": "kubernetes.io/tls", "data": encoded})
        async with started(found):
            shop, bank = (found.items[("secret", namespace, "edge")] for namespace in ("shop", "bank"))
            assert (shop.is_guarded, shop.grants) == (True, (Grant("vm"),))
            accounts._rulings[("shop", "gateway")] = Ruling(True, float("inf"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(found.source._grant, "shop")
                await found.settle()
            assert found.items[("secret", "shop", "edge")].grants == (Grant("vm"), Grant("shop", "gateway"))
            assert found.items[("secret", "bank", "edge")] is bank
            broken = {**encoded, "tls.crt": base64.b64encode(b"none").decode()}
            found.api.put(
                SECRETS, {"metadata": {"name": "edge", "namespace": "shop"}, "type": "Opaque", "data": broken}
            )
            await found.settle()
            assert found.source.statistics().rejected == 1
            accounts._rulings.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(found.source._grant, "shop")
                await found.settle()
            assert found.items[("secret", "shop", "edge")].grants == (Grant("vm"),), "also of one that is refused since"
            assert found.source.statistics().rejected == 1
            found.api.put(
                SECRETS, {"metadata": {**metadata, "namespace": "shop"}, "type": "kubernetes.io/tls", "data": encoded}
            )
            await found.settle()
            assert not found.source.statistics().rejected


async def test_the_mesh_config_is_that_of_the_config_map_and_the_last_good_one_stays(
    autojump_clock: MockClock,
) -> None:
    async with reading(mesh=MeshMapNames(shared="users")) as found:
        found.mesh(mesh="connectTimeout: 3s\n", meshNetworks="networks: {}\n")
        found.mesh("users", mesh="connectTimeout: 5s\ntrustDomain: ours.org\n")
        async with started(found):
            mesh = found.items[MESH]
            assert isinstance(mesh, MeshConfigValue)
            assert isinstance(found.items[NETWORKS], MeshNetworksValue)
            assert (mesh.config.connect_timeout.total_seconds(), mesh.config.trust_domain) == (3, "ours.org")
            found.mesh(mesh="trustDomain: other.org\nconnectTimeout: soon\n")
            await found.settle()
            assert found.items[MESH] == mesh
            (refused,) = found.follower.picture.rejected.values()
            assert str(refused.origin).endswith("/namespaces/istio-system/configmaps/istio mesh:2")
            assert [problem.path for problem in refused.problems] == ["connectTimeout"]
            found.mesh(mesh="connectTimeout: 4s\n")
            await found.settle()
            assert found.items[MESH].config.connect_timeout.total_seconds() == 4
            assert not found.follower.picture.rejected
            assert NETWORKS not in found.items
            found.api.remove(CONFIG_MAPS, "istio", "istio-system")
            await found.settle()
            assert found.items[MESH].config.connect_timeout.total_seconds() == 5


async def test_a_revision_has_a_config_map_of_its_own(autojump_clock: MockClock) -> None:
    assert MeshMapNames(revision="default").names == ("istio",)
    async with reading(mesh=MeshMapNames(revision="canary", reads_networks=False)) as found:
        found.mesh(mesh="trustDomain: wrong.org")
        found.mesh("istio-canary", mesh="trustDomain: right.org", meshNetworks="networks: {}")
        async with started(found):
            assert found.items[MESH].config.trust_domain == "right.org"
            assert NETWORKS not in found.items


async def test_namespaces_are_chosen_by_their_labels_at_any_time(autojump_clock: MockClock) -> None:
    chosen = "discoverySelectors: [{matchLabels: {mesh: 'on'}}, {matchExpressions: [{key: team, operator: Exists}]}]"
    async with reading(mesh=MeshMapNames()) as found:
        found.mesh(mesh=chosen)
        found.namespace("shop", mesh="on")
        found.namespace("bank", mesh="off")
        for namespace in ("shop", "bank"):
            found.rule("reviews", namespace)
        async with started(found):
            assert found.configs == {"shop/reviews"}
            (first,) = (event for event in found.follower.events if isinstance(event, Replace))
            told = {item.key.namespace for item in first.items if isinstance(item, Config)}
            assert told == {"", "shop"}, "what is left out is never told"
            assert found.source.statistics().other_namespaces == 1
            found.rule("ratings", "bank")
            found.namespace("bank", team="b")
            await found.settle()
            assert found.configs == {"shop/reviews", "bank/reviews", "bank/ratings"}
            found.follower.take_events()
            found.namespace("shop")
            await found.settle()
            assert found.configs == {"bank/reviews", "bank/ratings"}
            events = found.follower.take_events()
            assert [type(event) for event in events] == [Upsert, Delete], "the namespace, and its object"
            found.mesh(mesh="trustDomain: a.org")
            await found.settle()
            assert found.configs == {"shop/reviews", "bank/reviews", "bank/ratings"}


async def test_selectors_that_come_while_it_runs_leave_out_only_what_they_do_not_choose(
    autojump_clock: MockClock,
) -> None:
    async with reading(mesh=MeshMapNames(), kinds=ISTIO_KINDS) as found:
        found.namespace("shop", mesh="on")
        for namespace in ("shop", "bank"):
            found.rule("reviews", namespace)
        found.namespace("bank")
        async with started(found):
            assert found.configs == {"shop/reviews", "bank/reviews"}
            assert not any("/namespaces?" in request for request in found.api.requests), "nobody needs them"
            found.follower.take_events()
            found.mesh(mesh="discoverySelectors: [{matchLabels: {mesh: 'on'}}]")
            await found.settle()
            assert found.configs == {"shop/reviews"}
            assert len(found.follower.take_events()) == 2, "the mesh config, and one object less"


async def test_a_source_reads_all_kinds_that_there_are(autojump_clock: MockClock) -> None:
    served = [resource_of(kind) for kind in KINDS.values()]
    async with reading(served, kinds=KINDS) as found:
        found.namespace("shop", team="shop")
        async with started(found):
            assert found.follower.picture.synced == 1
            assert found.source.statistics().missing == ()
            assert found.items[("config", "Namespace", "", "shop")].labels["team"] == "shop"
            watched = {watch.resource.plural for watch in found.api.watches}
            assert {kind.plural for kind in ISTIO_KINDS.values()} <= watched
