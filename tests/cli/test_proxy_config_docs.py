"""docs/proxy-config.md says what the commands are called, which columns they print, and which filters they have."""

from __future__ import annotations

import re
from pathlib import Path

import click

from mesh_pilot.cli.proxy_config import command
from mesh_pilot.cli.proxy_config.command import ALIASES
from mesh_pilot.explain.inspection.listings import clusters, endpoints, extensions, listeners, routes, secrets

PAGE = (Path(__file__).parents[2] / "docs" / "proxy-config.md").read_text(encoding="utf-8")
COLUMNS = {
    "cluster": clusters.COLUMNS,
    "listener": (*listeners.COLUMNS, "TYPE"),
    "route": (*routes.COLUMNS, *routes.SHORT_COLUMNS),
    "endpoint": endpoints.COLUMNS,
    "secret": (*secrets.COLUMNS, secrets.TRUST_DOMAIN),
    "ecds": extensions.COLUMNS,
}
COMMON = {"--pilot", "--context", "--token-file", "--pilot-ca", "--pilot-cert", "--pilot-key"}
COMMON |= {"--file", "-f", "--admin", "--output", "-o", "--verbose", "--no-verbose", "-r"}


def rows() -> dict[str, list[str]]:
    table = PAGE[PAGE.index("| command | also") :].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0].strip("`"): row for row in cells}


def test_each_command_is_described_with_its_names_columns_and_filters() -> None:
    assert rows().keys() == command.commands.keys()
    for name, row in rows().items():
        _, also, columns, filters = (set(re.findall(r"`([^`]+)`", cell)) for cell in row)
        assert also == {alias for alias, of in ALIASES.items() if of == name}, name
        if name in COLUMNS:
            assert {column for column in columns if column.isupper()} == {*COLUMNS[name]}, name
        options = [each for each in command.commands[name].params if isinstance(each, click.Option)]
        flags = {flag for each in options for flag in (*each.opts, *each.secondary_opts)}
        assert filters == flags - COMMON, name
