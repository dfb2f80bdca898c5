"""The commands ``mesh-pilot proxy sidecar|router``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from mesh_pilot.cli.lib.options import SectionedCommand, SettingOption, variable_of
from mesh_pilot.cli.proxy.flags import FLAGS, PREFIX


def _take_defaults(ctx: click.Context, _: click.Parameter, value: Path | None) -> Path | None:
    """Put what the file and Istio's variables say below the flags and our variables, before these are read."""
    if ctx.resilient_parsing:
        return value
    from mesh_pilot.cli.lib.libraries import load_structlog

    load_structlog()  # before what imports it
    from mesh_pilot.cli.proxy.defaults import defaults_of

    ctx.default_map = defaults_of(ctx, value, os.environ)
    return value


def proxy_command(kind: str, help_text: str) -> click.Command:
    """The command that runs a proxy of a kind."""
    options = []
    for title, flags in FLAGS.items():
        for flag, attributes in flags:
            more: dict[str, Any] = {"is_eager": True, "callback": _take_defaults} if flag == "--config" else {}
            if attributes.get("default") == "":
                more["show_default"] = False
            made = {**attributes, **more}
            option = made.pop("cls", SettingOption)([flag], envvar=variable_of(flag, PREFIX), **made)
            option.section = title
            options.append(option)

    @click.pass_context
    def run(ctx: click.Context, /, **given: Any) -> int:
        from mesh_pilot.cli.proxy.run import run_proxy

        return run_proxy(kind, given, ctx)

    return SectionedCommand(
        kind,
        params=options,
        callback=run,
        context_settings={"show_default": True},
        help=f"""{help_text}

        Gets and renews a certificate, runs Envoy, and stands between it and the control plane. Runs until SIGTERM or
        Ctrl-C, then drains. SIGHUP starts it again without a gap, for an upgrade.

        Each flag is also a variable, --token-file {PREFIX}TOKEN_FILE, and a key of the file, token-file. A flag wins
        over a variable, that over a variable of Istio, that over the file.
        """,
    )
