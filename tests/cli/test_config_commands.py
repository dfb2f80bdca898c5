"""``mesh-pilot apply``, ``get`` and ``delete`` at a control plane with a folder that can be written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import attrs
import click
import pytest
import structlog
import trio
import yaml
from click.testing import CliRunner

from mesh_pilot.cli import cli
from mesh_pilot.cli.plane import completion
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.command import completions
from tests.support.config_stores import route
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

RULE = (
    "apiVersion: networking.istio.io/v1\nkind: DestinationRule\n"
    "metadata: {name: r, namespace: shop}\nspec: {host: reviews.test}\n"
)
WRONG = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec: {servers: [{}]}\n"


@attrs.frozen
class Ended:
    code: int
    out: str
    err: str


@attrs.frozen
class Commands:
    """A control plane, and commands that ask it."""

    folder: Path
    socket: Path

    async def __call__(self, *words: str, stdin: str = "") -> Ended:
        return await trio.to_thread.run_sync(partial(self._run, words, stdin))

    def _run(self, words: Sequence[str], stdin: str) -> Ended:
        arguments = [*words, "--pilot", f"unix://{self.socket}"]
        done = CliRunner().invoke(cli, arguments, input=stdin, standalone_mode=False)
        if isinstance(done.exception, click.ClickException):
            code, message = done.exception.exit_code, done.exception.format_message()
            return Ended(code, done.stdout, done.stderr + message)
        if done.exception is not None:
            raise done.exception
        return Ended(int(done.return_value or 0), done.stdout, done.stderr)

    def files(self) -> set[str]:
        return {str(file.relative_to(self.folder)) for file in self.folder.rglob("*.yaml")}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Commands]:
    config, state = tmp_path / "config", tmp_path / "state"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    with structlog.testing.capture_logs():  # else it would be in what commands print
        async with running_plane(
            config, config_store=str(config), state=StateSettings(folder=state), debounce_after=0.01
        ):
            await eventually((state / "admin.sock").exists)
            yield Commands(config, state / "admin.sock")


async def test_objects_are_applied_shown_edited_and_deleted(run: Commands, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{yaml.safe_dump(route('1s'))}---\n{RULE}")
    done = await run("apply", "-f", str(file), "--wait", "20s")
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert lines[:2] == ["VirtualService/shop/reviews created", "DestinationRule/shop/r created"]
    assert lines[2].startswith("VirtualService/shop/reviews: 0 of 0 proxies have it (revision ")
    assert run.files() == {"a.yaml", "shop/VirtualService.reviews.yaml", "shop/DestinationRule.r.yaml"}
    assert (await run("apply", "-f", str(file))).out.count(" unchanged") == 2

    shown = await run("get", "vs", "reviews", "-n", "shop", "-o", "yaml")
    object_ = yaml.safe_load(shown.out)
    assert object_["spec"] == route("1s")["spec"]
    assert object_["metadata"]["resourceVersion"]
    table = (await run("get", "virtualservices", "-A")).out.splitlines()
    assert table[0].split() == ["NAMESPACE", "NAME", "STATE", "FINDINGS", "WHERE"]
    assert table[1].split()[:4] == ["shop", "reviews", "in", "force"]
    assert (await run("get", "vs/reviews", "-n", "shop", "-o", "name")).out == "VirtualService/reviews\n"
    listed = json.loads((await run("get", "vs", "-A", "-o", "json")).out)
    assert [each["metadata"]["name"] for each in listed["items"]] == ["reviews"]
    both = (await run("get", "se", "-n", "shop", "-o", "yaml")).out
    assert [each["kind"] for each in yaml.safe_load_all(both)] == ["ServiceEntry"]

    edited = shown.out.replace("1s", "2s")
    assert (await run("apply", "-f", "-", stdin=edited)).out == "VirtualService/shop/reviews configured\n"
    stale = await run("apply", "-f", "-", stdin=shown.out.replace("1s", "3s"))
    assert stale.code == 1
    assert "refused: VirtualService/shop/reviews has changed: it is at version" in stale.err
    assert (await run("apply", "-f", "-", "--force", stdin=shown.out.replace("1s", "3s"))).code == 0

    done = await run("delete", "vs", "reviews", "-n", "shop", "--wait", "20s")
    assert (done.code, done.out.splitlines()[0]) == (0, "VirtualService/shop/reviews deleted")
    assert (await run("delete", "vs", "reviews", "-n", "shop")).code == 1
    assert (await run("delete", "vs", "reviews", "-n", "shop", "--ignore-not-found")).code == 0
    done = await run("delete", "-f", str(file), "--ignore-not-found")
    assert (done.code, done.out) == (0, "DestinationRule/shop/r deleted\n")
    assert run.files() == {"a.yaml"}


async def test_one_bad_object_does_not_stop_the_others_and_the_code_says_so(run: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "all.yaml").write_text(
        f"{WRONG}---\nkind: [\n---\n{RULE}---\napiVersion: v1\nkind: Service\nmetadata: {{name: s}}\n"
    )
    (folder / "note.txt").write_text("no object")
    done = await run("apply", "-f", str(folder))
    assert (done.code, done.out) == (1, "DestinationRule/shop/r created\n")
    assert f"{folder}/all.yaml:1: Gateway/default/g refused:\n  spec.servers[0]" in done.err
    assert "all.yaml:7: an object refused: not valid YAML" in done.err
    assert "v1 Service passed over" in done.err
    done = await run("apply", "-f", str(folder), "-o", "json")
    rows = json.loads(done.out)
    assert [each["action"] for each in rows] == ["refused", "refused", "unchanged"]
    assert rows[0]["problems"][0]["path"].startswith("spec.servers[0]")
    assert run.files() == {"a.yaml", "shop/DestinationRule.r.yaml"}


async def test_a_dry_run_changes_nothing(run: Commands) -> None:
    done = await run("apply", "-f", "-", "--dry-run", "--wait", "5s", stdin=yaml.safe_dump(route()))
    assert (done.code, done.out) == (0, "VirtualService/shop/reviews created (dry run)\n")
    done = await run("delete", "se", "reviews", "-n", "shop", "--dry-run")
    assert (done.code, done.out) == (0, "ServiceEntry/shop/reviews deleted (dry run)\n")
    assert run.files() == {"a.yaml"}


async def test_a_mistake_is_one_line(run: Commands) -> None:
    mistakes: list[tuple[tuple[str, ...], int, str]] = [
        (("apply", "-f", "nothing.yaml"), 1, "nothing.yaml: No such file"),
        (("apply", "-f", "-"), 1, "there is no object in -"),
        (("apply", "-f", "-", "-f", "-"), 2, "can be read once only"),
        (("get", "unheard"), 1, "there is no kind 'unheard'"),
        (("get", "vs", "x", "-A"), 2, "--all-namespaces excludes NAME"),
        (("get", "vs", "x"), 1, "there is no VirtualService x in namespace default"),
        (("get", "se", "reviews"), 1, "no ServiceEntry reviews in namespace default; there is one in shop: -n"),
        (("get", "se/shop/review"), 1, "no ServiceEntry review in namespace shop; did you mean reviews?"),
        (("get", "se/shop/reviews", "-n", "web"), 2, "'se/shop/reviews' is in namespace shop, and -n says web"),
        (("get", "se/shop/reviews/x"), 2, "'se/shop/reviews/x' is not KIND/NAME or KIND/NAMESPACE/NAME"),
        (("get", "se/a", "vs/b"), 2, "objects of one kind at a time"),
        (("get", "virtualservise"), 1, "there is no kind 'virtualservise'; did you mean VirtualService?"),
        (("get", "proxies"), 2, "mesh-pilot proxy-status lists proxies"),
        (
            ("get", "svc", "review", "-n", "shop"),
            1,
            "there is no service review in namespace shop; did you mean reviews",
        ),
        (("get", "vs"), 0, "No objects of kind VirtualService in namespace default."),
        (("delete", "vs"), 2, "name the objects of kind VirtualService"),
        (("delete", "svc/reviews"), 2, "service/reviews is not configuration"),
        (("delete",), 2, "name objects by KIND and NAME, or by FILE"),
        (("delete", "vs", "x", "-f", "-"), 2, "KIND and NAME exclude them"),
        (("get", "se", "reviews.web"), 1, "there is no ServiceEntry reviews.web in namespace default"),
        (("get", "se", "reviews.shop", "-n", "web"), 1, "there is no ServiceEntry reviews.shop in namespace web"),
        (("describe", "svc", "reviews.web"), 1, "there is no service reviews.web"),
        (("describe", "reviews.web"), 1, "there is nothing called reviews.web"),
        (("describe", "reviews.shop"), 1, "reviews.shop may be service/shop/reviews.test, ServiceEntry/shop/reviews"),
        (("describe", "nothing"), 1, "there is nothing called nothing"),
        (("describe", "se"), 2, "name one ServiceEntry to describe"),
        (("describe", "svc", "ratings"), 1, "there is no service ratings"),
        (("describe", "svc", "reviews", "-n", "web"), 1, "no service reviews in namespace web; there is service/shop/"),
        (("describe", "proxy", "web-1"), 1, "no connected proxy 'web-1'; connected: none"),
        (("describe", "reviews"), 1, "reviews may be service/shop/reviews.test, ServiceEntry/shop/reviews; write one"),
        (("describe", "se/shop/reviews", "--from", "web"), 2, "--from applies to services"),
        (("delete", "unheard", "x"), 1, "there is no kind 'unheard'"),
    ]
    for words, code, reason in mistakes:
        done = await run(*words)
        assert (done.code, done.out) == (code, ""), words
        assert reason in done.err
        assert len(done.err.strip().splitlines()) == 1, done.err


async def test_objects_are_passed_on_as_they_are_read(run: Commands) -> None:
    """A List, as ``kubectl get -o yaml`` prints it; objects without a namespace; and in JSON."""
    rule = yaml.safe_load(RULE)
    del rule["metadata"]["namespace"]
    found = {"apiVersion": "v1", "kind": "List", "items": [rule, route()]}
    done = await run("apply", "-f", "-", "-n", "web", stdin=json.dumps(found, indent="\t"))
    assert done.out.splitlines() == ["DestinationRule/web/r created", "VirtualService/shop/reviews created"]


async def test_an_object_whose_newer_version_is_refused_says_so_in_the_table(run: Commands) -> None:
    file = run.folder / "b.yaml"
    file.write_text(yaml.safe_dump(route("1s")))

    async def row() -> str:
        return "".join((await run("get", "vs", "-n", "shop")).out.splitlines()[-1:])  # nothing until it is read

    async def says(text: str) -> bool:
        return text in await row()

    await eventually(lambda: says("reviews"), what="the object is read")
    assert "refused" not in await row()
    file.write_text(yaml.safe_dump(route("soon")))
    await eventually(lambda: says("refused"), what="the new version is refused")


WAYS = (
    ("se", "reviews", "-n", "shop"),
    ("se/reviews", "-n", "shop"),
    ("se/shop/reviews",),
    ("SERVICEENTRIES", "reviews", "--namespace=shop"),
    ("serviceentry.networking.istio.io/shop/reviews",),
    ("serviceentries.networking.istio.io", "reviews", "-n", "shop"),
    ("se", "reviews.shop"),
    ("se/reviews.shop",),
)


async def test_an_object_is_named_alike_in_every_command(run: Commands) -> None:
    for words in WAYS:
        assert (await run("get", *words, "-o", "name")).out == "ServiceEntry/reviews\n", words
        assert (await run("describe", *words)).out.startswith("Object ServiceEntry/shop/reviews"), words
        deleted = await run("delete", *words, "--dry-run")
        assert deleted.out == "ServiceEntry/shop/reviews deleted (dry run)\n", words


async def test_an_object_whose_whole_name_has_a_dot_is_meant_before_one_in_a_namespace(run: Commands) -> None:
    (run.folder / "b.yaml").write_text(RULE.replace("name: r,", "name: reviews,"))
    (run.folder / "c.yaml").write_text(RULE.replace("name: r, namespace: shop", "name: reviews.shop"))

    async def is_whole() -> bool:
        return (await run("get", "dr", "reviews.shop", "-o", "name")).out == "DestinationRule/reviews.shop\n"

    await eventually(is_whole, what="both are read")
    assert (await run("get", "dr", "reviews", "-n", "shop", "-o", "name")).out == "DestinationRule/reviews\n"


async def test_a_service_is_found_by_its_host_or_the_first_part_of_it(run: Commands) -> None:
    for words in (
        ("service", "reviews.test"),
        ("svc", "reviews", "-n", "shop"),
        ("services/reviews",),
        ("reviews.test",),
        ("svc", "reviews.shop"),
    ):
        assert (await run("describe", *words)).out.startswith("Service reviews.test"), words
    listed = (await run("get", "services", "-A")).out.splitlines()
    assert listed[0].split() == ["NAMESPACE", "HOST", "PORTS", "ENDPOINTS", "REGISTRY"]
    assert listed[1].split()[:4] == ["shop", "reviews.test", "9080/HTTP", "1/1"]
    assert (await run("get", "svc", "reviews", "-o", "name")).out == "service/reviews.test\n"
    assert "No services in namespace default." in (await run("get", "svc")).err
    (run.folder / "second.yaml").write_text(SERVICE.replace("name: reviews", "name: b").replace("s.test", "s.b.test"))

    async def is_refused() -> bool:
        done = await run("describe", "svc", "reviews")
        return "reviews may be service/shop/reviews.b.test, service/shop/reviews.test; write one" in done.err

    await eventually(is_refused, what="two services have the name")


async def test_files_are_arguments_or_flags_alike(run: Commands, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RULE)
    for words in ((str(file),), ("-f", str(file))):
        assert (await run("plan", *words)).code == 0
        assert "1 object is good, 0 errors" in (await run("analyze", *words)).out
        assert (await run("apply", *words)).out == "DestinationRule/shop/r created\n"
        assert (await run("delete", *words)).out == "DestinationRule/shop/r deleted\n"


async def test_a_shell_completes_what_the_plane_has(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_PILOT_PILOT", f"unix://{run.socket}")

    async def completed(*words: str) -> set[str]:
        return await trio.to_thread.run_sync(completions, *words)

    assert "serviceentry" in await completed("get", "ser")
    assert await completed("get", "se", "-n", "shop", "r") == {"reviews"}
    assert await completed("get", "se/") == {"se/shop/reviews"}
    assert await completed("describe", "svc", "rev") == {"reviews.test"}
    assert await completed("why", "rev") == {"reviews.test"}
    assert await completed("get", "vs", "-n", "s") == {"shop"}
    assert await completed("history", "--object", "Serv") == {"ServiceEntry/shop/reviews"}
    assert await completed("pc", "cluster", "w") == set()
    assert await completed("admin", "accept", "f") == {"files"}


def test_a_shell_completes_nothing_where_no_plane_answers(capfd: pytest.CaptureFixture[str]) -> None:
    assert completions("why", "--pilot", "unix:///nowhere/admin.sock", "rev") == set()
    assert completions("why", "--pilot", "no address", "rev") == set()
    assert completions("delete", "--state-dir", "/nowhere", "vs", "r") == set()
    assert capfd.readouterr().err == ""


def test_the_kinds_that_are_completed_are_those_that_there_are() -> None:
    now = {name.lower() for name, kind in KINDS.items() if not kind.legacy}
    assert {*completion.KINDS} == now - {"namespace", "ingressclass", "xbackendtrafficpolicy"}
