"""Logs: scopes and their levels, and the three ways in which a line is written."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

import mesh_pilot
from mesh_pilot.cli.lib.logs import SCOPES, LogFormat, LogLevels, configure, parse_levels
from mesh_pilot.model.log_levels import ISTIO_SCOPES


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


def written(levels: str, style: LogFormat, stream: io.StringIO) -> io.StringIO:
    configure(parse_levels(levels), style, stream)
    return stream


def test_levels_are_read_as_istio_writes_them() -> None:
    assert parse_levels("default:warn, xds:debug,sources.files:none") == LogLevels(
        logging.WARNING, {"xds": logging.DEBUG, "sources.files": logging.CRITICAL + 10}
    )
    assert parse_levels("debug") == LogLevels(logging.DEBUG)
    assert parse_levels("") == LogLevels(logging.INFO)


@pytest.mark.parametrize(
    ("text", "scopes"),
    [
        ("xds:debug,ads:debug", {"xds"}),
        ("delta:debug,wle:debug", {"xds", "registration"}),
        ("default:info,xdsproxy:debug,sds:debug,security:debug", {"agent.relay", "agent.identity", "security"}),
    ],
)
def test_scopes_of_istio_count_as_ours_that_have_the_like(text: str, scopes: set[str]) -> None:
    assert parse_levels(text) == LogLevels(logging.INFO, dict.fromkeys(scopes, logging.DEBUG))


def test_every_scope_of_istio_leads_to_one_of_ours() -> None:
    assert {ours.partition(".")[0] for ours in ISTIO_SCOPES.values()} <= SCOPES.keys()
    assert not ISTIO_SCOPES.keys() & SCOPES.keys()
    of_istiod = "ads adsc analysis authn authorization ca controllers delta file gateway klog krt kube model monitoring"
    assert {*of_istiod.split()} <= ISTIO_SCOPES.keys()


@pytest.mark.parametrize(
    ("text", "wrong"), [("xds:loud", "unknown level 'loud'"), ("xsd:debug", "unknown scope 'xsd'"), ("xds", "level")]
)
def test_a_wrong_level_or_scope_is_named(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_levels(text)


def test_each_scope_has_its_level_and_hands_it_to_the_scopes_below() -> None:
    out = written("warn,sources:debug,xds:info", LogFormat.TEXT, io.StringIO())
    structlog.get_logger(scope="world").info("unheard")
    structlog.get_logger(scope="xds").debug("unheard")
    structlog.get_logger(scope="xds").info("heard")
    structlog.get_logger(scope="sources.files").debug("heard")
    assert "unheard" not in out.getvalue()
    assert out.getvalue().count("heard") == 2


def test_with_level_none_nothing_is_logged() -> None:
    out = written("none", LogFormat.TEXT, io.StringIO())
    structlog.get_logger(scope="xds").critical("unheard")
    assert out.getvalue() == ""


def test_in_a_pipe_a_line_is_key_equals_value() -> None:
    out = written("info", LogFormat.TEXT, io.StringIO())
    structlog.get_logger(scope="xds").info("proxy connected", proxy="web-1.shop", why='it "came"')
    assert re.fullmatch(
        r'time=\S+Z level=info scope=xds msg="proxy connected" proxy=web-1.shop why="it \\"came\\""\n', out.getvalue()
    )


def test_on_a_terminal_a_line_is_for_people() -> None:
    out = written("info", LogFormat.TEXT, Terminal())
    structlog.get_logger(scope="xds").info("proxy connected", proxy="web-1.shop")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} \[info *\] proxy connected \[xds\] proxy=web-1.shop\n", plain)


@pytest.mark.parametrize("stream", [io.StringIO, lambda: Terminal()])
def test_text_of_others_cannot_steer_the_terminal(stream: Any) -> None:
    out = written("info", LogFormat.TEXT, stream())
    structlog.get_logger(scope="admin").warning("request refused", asked="GET /\x1b]0;x\x07\x9b1m\u202eabc")
    assert not set("\x07\x9b\u202e") & set(out.getvalue())
    assert "\x1b]" not in out.getvalue()
    assert "x1b]0;x" in out.getvalue()


def test_no_color_is_honoured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = written("info", LogFormat.TEXT, Terminal())
    structlog.get_logger(scope="xds").info("proxy connected", proxy="web-1.shop")
    assert "proxy connected" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_json_has_one_object_a_line_with_the_traceback_inside() -> None:
    out = written("info", LogFormat.JSON, io.StringIO())
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger(scope="world").exception("could not", path=Path("a/b"))
    (line,) = out.getvalue().splitlines()
    assert {"level": "error", "scope": "world", "msg": "could not", "path": "a/b"}.items() <= json.loads(line).items()
    assert "boom" in line


def test_in_a_pipe_a_traceback_stays_on_its_line() -> None:
    out = written("info", LogFormat.TEXT, io.StringIO())
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger(scope="world").exception("could not")
    assert len(out.getvalue().splitlines()) == 1
    assert "ValueError: boom" in out.getvalue()


def test_what_libraries_log_comes_out_the_same_way_from_warnings_up() -> None:
    out = written("debug", LogFormat.TEXT, io.StringIO())
    logging.getLogger("starlette.error").info("unheard")
    logging.getLogger("starlette.error").warning("trouble with %s", "it")
    assert 'level=warning scope=starlette.error msg="trouble with it"' in out.getvalue()
    assert "unheard" not in out.getvalue()


def test_every_scope_in_the_code_is_known_and_every_known_scope_is_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in Path(mesh_pilot.__file__).parent.rglob("*.py"))
    used = set(re.findall(r'get_logger\(\s*scope="([^"]+)"', code))
    assert {scope.partition(".")[0] for scope in used} <= set(SCOPES), "add it to SCOPES"
    assert {scope for scope in SCOPES if not any(name.startswith(scope) for name in used)} == set()
    assert code.count("structlog.get_logger(") == len(re.findall(r'structlog\.get_logger\(\s*scope="', code)) + 1
