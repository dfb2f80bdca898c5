"""Variables and flags of istiod: each is honoured or answered, and the page lists those that set a flag."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mesh_pilot.cli.discovery.command import command
from mesh_pilot.cli.discovery.istio_environment import Line, flag_hint, istio_names, take_istio_environment

PAGE = Path(__file__).parents[2] / "docs" / "istio-environment.md"

BEGIN = "These set a flag:\n\n"
NAMES = istio_names()
DEFAULTS = {option.name: option for option in command.params}


def honoured() -> str:
    """The list of the page, as it should be."""
    return "".join(f"- `{name}`: `{flag}`\n" for name, flag in sorted(NAMES.honoured.items()))


def test_the_page_has_every_variable_that_sets_a_flag() -> None:
    """Run this file to write the list again."""
    assert PAGE.read_text(encoding="utf-8").endswith(BEGIN + honoured())


def test_each_honoured_variable_and_flag_has_a_flag_of_ours() -> None:
    ours = {name for option in command.params for name in option.opts}
    assert {*NAMES.honoured.values()} <= ours
    assert {flag.split()[0] for flag in NAMES.flags.values() if flag} <= ours
    assert not NAMES.honoured.keys() & NAMES.answered.keys()
    assert not NAMES.flags.keys() & NAMES.answered_flags.keys()


def test_answers_name_flags_of_ours() -> None:
    ours = {name for option in command.params for name in option.opts} | {"--clusters", "--metadata"}
    texts = [*NAMES.answered.values(), *NAMES.answered_flags.values()]
    assert {name for text in texts for name in re.findall(r"--[a-z][a-z0-9-]+", text)} <= ours


def taken(environ: dict[str, str], *given: str) -> tuple[dict[str, Any], list[Line]]:
    """The settings that variables change, if the others are given; and what is said."""
    settings: dict[str, Any] = {}
    context = click.Context(command)

    def read(name: str, text: str) -> object:
        return DEFAULTS[name].type_cast_value(context, text)

    lines = take_istio_environment(settings, environ, lambda name: name not in given, read)
    return settings, lines


def test_a_variable_sets_what_its_flag_sets() -> None:
    settings, lines = taken({"PILOT_DEBOUNCE_AFTER": "250ms", "PILOT_MAX_REQUESTS_PER_SECOND": "25"})
    assert settings == {"debounce_after": 0.25, "max_requests_per_second": 25.0}
    assert [line.event for line in lines] == ["variable of istio is honoured"] * 2
    assert lines[0].fields == {"variable": "PILOT_DEBOUNCE_AFTER", "value": "250ms", "flag": "--debounce-after"}


def test_a_flag_wins() -> None:
    settings, (line,) = taken({"PILOT_DEBOUNCE_MAX": "1s"}, "debounce_max")
    assert settings == {}
    assert line.fields["reason"] == "--debounce-max is given"


@pytest.mark.parametrize("text", ["soon", "-1s", "10"])
def test_a_value_that_is_none_leaves_the_default_in_force(text: str) -> None:
    settings, (line,) = taken({"PILOT_DEBOUNCE_MAX": text})
    assert settings == {}
    assert line.is_warning
    assert line.event == "variable of istio is refused"
    assert "the default of --debounce-max stays" in str(line.fields["reason"])


def test_a_rate_of_zero_is_the_default_as_in_istio() -> None:
    settings, (line,) = taken({"PILOT_MAX_REQUESTS_PER_SECOND": "0"})
    assert settings == {}
    assert not line.is_warning


@pytest.mark.parametrize(
    "environ",
    [
        {"DEFAULT_WORKLOAD_CERT_TTL": "9999h"},
        {"MAX_WORKLOAD_CERT_TTL": "1h"},
        {"DEFAULT_WORKLOAD_CERT_TTL": "2h", "MAX_WORKLOAD_CERT_TTL": "1h"},
    ],
)
def test_lives_of_certificates_that_contradict_each_other_are_refused_by_the_names_of_the_variables(
    environ: dict[str, str], tmp_path: Path
) -> None:
    result = CliRunner().invoke(command, ["--config-dir", str(tmp_path), "--no-state"], env=environ)
    assert result.exit_code == 2
    assert ", ".join(f"{name}={text}" for name, text in environ.items()) in result.output
    assert "--max-workload-cert-ttl" in result.output


def test_what_has_no_effect_is_answered_and_what_is_unknown_is_listed_once() -> None:
    environ = {"PILOT_PUSH_THROTTLE": "100", "PILOT_NEW": "1", "ISTIOD_NEW": "1", "PATH": "/bin", "PILOT_HTTP10": ""}
    settings, (answer, unknown) = taken(environ)
    assert settings == {}
    assert answer.fields == {"variable": "PILOT_PUSH_THROTTLE", "reason": NAMES.answered["PILOT_PUSH_THROTTLE"]}
    assert (unknown.fields["variables"], unknown.is_warning) == (["ISTIOD_NEW", "PILOT_NEW"], True)


def test_trust_is_not_widened_by_a_variable_of_istio() -> None:
    settings, (line,) = taken({"TRUSTED_GATEWAY_CIDR": "0.0.0.0/0"})
    assert settings == {}
    assert line.event == "variable of istio has no effect"
    assert "--trusted-gateway-cidrs" in str(line.fields["reason"])


@pytest.mark.parametrize(
    ("variable", "flag"),
    [
        ("JWT_RULE", "--jwt-rules"),
        ("TOKEN_AUDIENCES", "--kubernetes-token-audience"),
        ("EXTERNAL_CA", "--ca-signer"),
        ("ENABLE_LEADER_ELECTION", "--leader-election"),
        ("ROOT_CA_DIR", "--ca-dir"),
    ],
)
def test_a_variable_without_the_prefix_names_the_flag_in_its_place(variable: str, flag: str) -> None:
    settings, (line,) = taken({variable: "something"})
    assert settings == {}
    assert flag in str(line.fields["reason"])


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--keepaliveMaxServerConnectionAge=30m", "here it is --max-connection-age"),
        ("--grpcAddr", "here it is --grpc-addr"),
        ("--plugins", "it is not needed here"),
        ("--tls-min-version=TLSV1_3", "no counterpart: the least is TLS 1.2"),
        ("--kubernetesApiQPS=80", "--status-qps"),
    ],
)
def test_a_flag_of_istiod_names_ours(flag: str, text: str) -> None:
    result = CliRunner().invoke(command, [flag, "x"])
    assert result.exit_code == 2
    assert text in result.output
    assert text in flag_hint(flag)


def test_any_other_flag_is_not_explained() -> None:
    assert flag_hint("--no-such-flag") == ""
    assert "No such option" in CliRunner().invoke(command, ["--no-such-flag"]).output


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(f"{text.partition(BEGIN)[0]}{BEGIN}{honoured()}", encoding="utf-8")
