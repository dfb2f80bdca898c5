"""Runs the agent for ``mesh-pilot proxy sidecar|router``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from mesh_pilot.cli.logs import LogFormat, configure, parse_levels
from mesh_pilot.cli.proxy.defaults import REMARKS


def run_proxy(kind: str, given: Mapping[str, Any], ctx: click.Context) -> int:
    """Run an agent until a signal; returns the exit code. Raises ClickException, with one line for users."""
    import structlog
    import trio

    from mesh_pilot.agent.agent import run_agent
    from mesh_pilot.agent.handover import Handover
    from mesh_pilot.agent.settings import AgentError
    from mesh_pilot.cli.process import forbid_core_dumps
    from mesh_pilot.cli.proxy.settings import agent_settings

    settings = agent_settings(kind, given, ctx.default_map or {}, os.environ)
    style = LogFormat(given["log_format"])
    configure(parse_levels(given["log_level"]), style, sys.stderr)
    log = structlog.get_logger(scope="agent")
    for remark in ctx.meta.get(REMARKS, ()):
        log.warning(remark.event, **remark.fields)
    if given["check"]:
        click.echo(f"{settings.node.id}: the settings are good")
        return 0
    forbid_core_dumps()
    try:
        handover = Handover.received()
        while trio.run(run_agent, settings, handover):
            reason = handover.execute()
            log.error("another version cannot be executed; this one goes on", reason=reason)
    except AgentError as error:
        if style is not LogFormat.JSON:
            raise click.ClickException(str(error)) from None
        log.error("cannot go on", reason=str(error))
        return 1
    return 0
