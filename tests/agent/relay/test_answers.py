"""The accepted answers on disk."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mesh_pilot.agent.relay.answers import AcceptedResponse, Answers
from mesh_pilot.agent.relay.messages import KeptResource, ResponseParts, XdsProtocol
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, SECRET, VIRTUAL_HOST

PROXY = "sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local web.shop"


def delta(type_url: str, *names: str, removed: tuple[str, ...] = (), version: str = "v1") -> AcceptedResponse:
    resources = tuple(KeptResource(name, version, f"{name} {version}".encode()) for name in names)
    return AcceptedResponse(XdsProtocol.DELTA, ResponseParts(type_url, "", resources, removed), False)


def sotw(type_url: str, version: str, *names: str) -> AcceptedResponse:
    resources = tuple(KeptResource(name, "", f"{name} {version}".encode()) for name in names)
    is_full = type_url == CLUSTER
    return AcceptedResponse(XdsProtocol.SOTW, ResponseParts(type_url, version, resources), is_full)


def names(answers: Answers, type_url: str, wanted: tuple[str, ...] | None = None) -> list[str]:
    found = answers.find(type_url, wanted)
    assert found is not None
    return sorted(resource.name for resource in found[1])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "answers.db"


def test_what_was_accepted_outlives_the_process(file: Path) -> None:
    first = Answers(file, PROXY)
    first.keep([delta(CLUSTER, "a", "b"), delta(ENDPOINT, "a")], now=100.0)
    assert file.stat().st_mode & 0o777 == 0o600
    again = Answers(file, PROXY)  # the first was killed
    assert again.find(CLUSTER, None) == (
        "",
        [KeptResource("a", "v1", b"a v1"), KeptResource("b", "v1", b"b v1")],
    )
    assert names(again, CLUSTER, ("b", "c")) == ["b"]
    assert again.statistics().resources == 3
    assert again.statistics().confirmed_at == 100.0


def test_delta_removes_and_replaces(file: Path) -> None:
    answers = Answers(file, PROXY)
    answers.keep(
        [delta(CLUSTER, "a", "b"), delta(CLUSTER, "c", removed=("a",)), delta(CLUSTER, "b", version="v2")], now=1
    )
    assert names(answers, CLUSTER) == ["b", "c"]
    found = answers.find(CLUSTER, ("b",))
    assert found is not None
    assert found[1] == [KeptResource("b", "v2", b"b v2")]


def test_a_full_state_takes_what_it_lacks_and_others_do_not(file: Path) -> None:
    answers = Answers(file, PROXY)
    answers.keep([sotw(CLUSTER, "1", "a", "b"), sotw(ENDPOINT, "1", "a", "b")], now=1)
    answers.keep([sotw(CLUSTER, "2", "b"), sotw(ENDPOINT, "2", "b")], now=2)
    assert names(answers, CLUSTER) == ["b"]
    assert names(answers, ENDPOINT) == ["a", "b"]
    found = answers.find(CLUSTER, None)
    assert found is not None
    assert found[0] == "2"


def test_an_empty_answer_is_an_answer_and_none_is_none(file: Path) -> None:
    answers = Answers(file, PROXY)
    answers.keep([sotw(CLUSTER, "1")], now=1)
    assert answers.find(CLUSTER, None) == ("1", [])
    assert answers.find(ENDPOINT, None) is None


def test_a_resource_is_found_by_its_alias(file: Path) -> None:
    answers = Answers(file, PROXY)
    host = KeptResource("80/reviews", "v1", b"body", ("80/reviews.shop", "80/reviews:80"))
    answers.keep([AcceptedResponse(XdsProtocol.DELTA, ResponseParts(VIRTUAL_HOST, "", (host,)), False)], now=1)
    assert answers.find(VIRTUAL_HOST, ("80/reviews:80",)) == ("", [host])
    assert answers.forget(VIRTUAL_HOST, {"80/reviews.shop"}) == 0
    assert answers.forget(VIRTUAL_HOST, {"80/other"}) == 1
    assert names(answers, VIRTUAL_HOST) == []


def test_private_keys_are_not_kept(file: Path) -> None:
    answers = Answers(file, PROXY)
    answers.keep([delta(SECRET, "kubernetes://cert"), delta(CLUSTER, "a")], now=1)
    assert answers.find(SECRET, None) is None
    answers.close()
    assert b"kubernetes://cert" not in file.read_bytes()


def test_many_names_are_found(file: Path) -> None:
    answers = Answers(file, PROXY)
    many = tuple(f"c{number}" for number in range(1700))
    answers.keep([delta(CLUSTER, *many)], now=1)
    assert len(names(answers, CLUSTER, many)) == 1700


def test_answers_of_another_proxy_are_dropped_with_one_line(file: Path) -> None:
    Answers(file, PROXY).keep([delta(CLUSTER, "a")], now=1)
    with capture_logs() as logs:
        other = Answers(file, PROXY.replace("web-1", "web-2"))
        assert other.find(CLUSTER, None) is None
        assert other.statistics().resources == 0
    assert [line["event"] for line in logs] == ["kept answers are of another proxy and are dropped"]


@pytest.mark.parametrize(
    "damage",
    [b"this is not a database, and never was one" * 20, b"SQLite format 3\0" + b"\xff" * 5000],
    ids=["text", "header"],
)
def test_a_damaged_file_is_moved_aside_and_the_next_answers_are_kept(file: Path, damage: bytes) -> None:
    Answers(file, PROXY).keep([delta(CLUSTER, "a")], now=1)
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    file.write_bytes(damage)
    with capture_logs() as logs:
        answers = Answers(file, PROXY)
        assert answers.find(CLUSTER, None) is None
        answers.keep([delta(CLUSTER, "b")], now=2)
    assert names(answers, CLUSTER) == ["b"]
    assert [line["event"] for line in logs] == ["kept answers cannot be read; new ones are kept"]
    assert file.with_name("answers.db.damaged").read_bytes() == damage


def test_a_file_of_another_format_is_moved_aside(file: Path) -> None:
    Answers(file, PROXY).keep([delta(CLUSTER, "a")], now=1)
    with sqlite3.connect(file) as database:
        database.execute("UPDATE facts SET value = '99' WHERE name = 'format'")
    with capture_logs() as logs:
        assert Answers(file, PROXY).find(CLUSTER, None) is None
    (line,) = logs
    assert "format is 99" in line["reason"]


def test_a_damaged_resource_is_left_out_and_said(file: Path) -> None:
    Answers(file, PROXY).keep([delta(CLUSTER, "a", "b")], now=1)
    with sqlite3.connect(file) as database:
        database.execute("UPDATE answers SET body = x'00' WHERE name = 'a'")
    with capture_logs() as logs:
        assert names(Answers(file, PROXY), CLUSTER) == ["b"]
    assert [line["event"] for line in logs] == ["a kept answer is damaged and left out"]


def test_a_batch_is_written_whole_or_not_at_all(file: Path) -> None:
    answers = Answers(file, PROXY)
    answers.keep([delta(CLUSTER, "a")], now=1)
    broken = AcceptedResponse(
        XdsProtocol.DELTA,
        ResponseParts(CLUSTER, "", (KeptResource("c", "v", None),)),
        False,  # type: ignore[arg-type]
    )
    with pytest.raises((TypeError, sqlite3.Error)):
        answers.keep([delta(CLUSTER, "b"), broken], now=2)
    assert names(Answers(file, PROXY), CLUSTER) == ["a"]


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_disk_that_takes_nothing_is_read(file: Path, monkeypatch: pytest.MonkeyPatch, was_killed: bool) -> None:
    first = Answers(file, PROXY)
    first.keep([delta(CLUSTER, "a")], now=100.0)
    if not was_killed:
        first.close()
    real = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    again = Answers(file, PROXY)
    assert again.statistics().resources == 1
    assert names(again, CLUSTER) == ["a"]
    with pytest.raises(OSError, match="Read-only"):
        again.keep([delta(CLUSTER, "b")], now=101.0)
    with pytest.raises(sqlite3.OperationalError, match="by another version or proxy"):
        Answers(file, "another").statistics()
    monkeypatch.undo()
    again.keep([delta(CLUSTER, "b")], now=102.0)
    assert names(again, CLUSTER) == ["a", "b"]


def test_a_folder_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="exists"):
        Answers(tmp_path / "file" / "answers.db", PROXY).statistics()


@pytest.mark.parametrize("what", ["folder", "files"])
def test_what_was_kept_is_written_again_where_it_was_removed(tmp_path: Path, what: str) -> None:
    file = tmp_path / "state" / "answers.db"
    answers = Answers(file, PROXY)
    answers.keep([delta(CLUSTER, "a")], now=1)
    if what == "folder":
        shutil.rmtree(file.parent)
    else:
        for each in file.parent.iterdir():
            each.unlink()
    with capture_logs() as logs:
        answers.keep([delta(CLUSTER, "b")], now=2)
    assert [line["event"] for line in logs] == ["stored answers were removed from the disk; writing them again"]
    assert names(Answers(file, PROXY), CLUSTER) == ["a", "b"]
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_is_found_and_what_is_accepted_next_is_kept(file: Path, seed: int) -> None:
    survives_flips(file, seed, 15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 108))
def test_many_flipped_bits(file: Path, seed: int) -> None:
    survives_flips(file, seed, 60)


def survives_flips(file: Path, seed: int, count: int) -> None:
    """Whatever bit flips: each answer is as it was, or it is said; after the next full answers, all are right."""
    chance = random.Random(seed)
    protocol = chance.choice([delta, sotw])
    full = [delta(CLUSTER, *map(str, range(20))), delta(ENDPOINT, *map(str, range(20)))]
    if protocol is sotw:
        full = [sotw(kind, "1", *map(str, range(20))) for kind in (CLUSTER, ENDPOINT)]
    right = {each.response.type_url: list(each.response.answers) for each in full}
    first = Answers(file, PROXY)
    first.keep(full, now=1)
    first.close()
    whole = file.read_bytes()
    for _ in range(count):
        for each in file.parent.iterdir():
            each.unlink()
        damaged = bytearray(whole)
        # Most of the bits are of pages that are read at once: the header, the schema, the first of each table.
        at = chance.randrange(100) if chance.random() < 0.2 else chance.randrange(len(whole))
        damaged[at] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        with capture_logs() as logs:
            answers = Answers(file, PROXY)
            found = {kind: answers.find(kind, None) for kind in right}
            answers.keep(full, now=2)
        for kind, resources in right.items():
            kept = found[kind]
            assert logs or (kept is not None and bodies(kept[1]) == bodies(resources)), (seed, at)
            assert kept is None or bodies(kept[1]).items() <= bodies(resources).items(), (seed, at)
        again = Answers(file, PROXY)
        for kind, resources in right.items():
            kept = again.find(kind, None)
            assert kept is not None and bodies(kept[1]) == bodies(resources), (seed, at)
        again.close()
        answers.close()


def bodies(resources: list[KeptResource]) -> dict[str, bytes]:
    return {each.name: each.body for each in resources}
