"""Runs the agent for ``mesh-pilot proxy sidecar|router``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import MutableMapping
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mesh_pilot.base.output import take_standard_outputs
from mesh_pilot.cli.lib.logs import LogFormat, configure, parse_levels
from mesh_pilot.cli.proxy.defaults import REMARKS
from mesh_pilot.cli.proxy.istio_names import Remark

if TYPE_CHECKING:
    from mesh_pilot.agent.settings import AgentSettings


_PATIENCE_SECONDS = 20.0
"""Timeout for an Envoy that judges a bootstrap."""


def run_proxy(kind: str, given: MutableMapping[str, Any], ctx: click.Context) -> int:
    """Run an agent until a signal; returns the exit code. Raises ClickException, with one line for users."""
    prepare_process()
    from mesh_pilot.agent.settings import AgentError
    from mesh_pilot.cli.proxy.settings import agent_settings

    style = LogFormat(given["log_format"])
    configure(parse_levels(given["log_level"]), style, sys.stderr)
    import structlog

    log = structlog.get_logger(scope="agent")
    unset = {name for name in given if ctx.get_parameter_source(name) is ParameterSource.DEFAULT}
    remarks: list[Remark] = list(ctx.meta.get(REMARKS, ()))
    try:
        try:
            settings = agent_settings(kind, given, unset, ctx.default_map or {}, os.environ, remarks)
        finally:
            for remark in remarks:
                log.warning(remark.event, **remark.fields)
        if given["check"]:
            check(settings)
            click.echo(f"{settings.node.id}: the settings are good")
        else:
            run_agent_of(settings)
    except AgentError as error:
        if style is not LogFormat.JSON:
            raise click.ClickException(str(error)) from None
        log.error("cannot go on", reason=str(error))
        return 1
    return 0


def prepare_process() -> None:
    """Settings of the whole process, before there is a private key, a thread or a large library."""
    from mesh_pilot.cli.lib.libraries import leave_out_httpx_command
    from mesh_pilot.cli.lib.process import forbid_core_dumps, open_more_files, outlive_signals
    from mesh_pilot.cli.proxy.memory import share_heap

    take_standard_outputs()
    forbid_core_dumps()
    open_more_files()
    outlive_signals()
    share_heap()
    leave_out_httpx_command()


def check(settings: AgentSettings) -> None:
    """Load what an agent runs, and make the bootstrap; Envoy judges one with a custom part. Raises AgentError."""
    import json

    import mesh_pilot.agent.run.agent  # noqa: F401  a broken installation fails here
    from mesh_pilot.agent.envoy.binary import find_envoy
    from mesh_pilot.agent.run.bootstrap import agent_bootstrap
    from mesh_pilot.agent.settings import AgentError

    bootstrap = agent_bootstrap(settings)
    if settings.envoy.custom_bootstrap is None:
        return
    envoy = find_envoy(settings.envoy.binary)
    command = [str(envoy), "--mode", "validate", "--allow-unknown-static-fields"]
    try:
        with NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(bootstrap, file)
            file.flush()
            done = subprocess.run(
                [*command, "-c", file.name],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_PATIENCE_SECONDS,
            )
    except OSError as error:
        raise AgentError(f"Envoy cannot judge the bootstrap: {error.filename or envoy}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise AgentError(
            f"Envoy cannot judge the bootstrap: {envoy} took longer than {_PATIENCE_SECONDS:g} s"
        ) from None
    if done.returncode != 0:
        reasons = [line for line in done.stderr.splitlines() if "error initializing" in line or "[critical]" in line]
        reason = (reasons or done.stderr.splitlines() or ["no reason given"])[-1].rpartition(f"{file.name}': ")[2]
        raise AgentError(f"Envoy refuses the bootstrap with {settings.envoy.custom_bootstrap}: {reason}")


def run_agent_of(settings: AgentSettings) -> None:
    """Run the agent until a signal, and another version of it after SIGHUP. Raises AgentError."""
    import structlog
    import trio

    from mesh_pilot.agent.base.handover import Handover
    from mesh_pilot.agent.run.agent import run_agent

    log = structlog.get_logger(scope="agent")
    handover = Handover.received()
    while trio.run(run_agent, settings, handover):
        reason = handover.execute()
        log.error("another version cannot be executed; this one continues", reason=reason)
