"""The command ``mesh-pilot``, with a module for each subcommand, in families:

- ``demo``: a small mesh with real Envoys.
- ``explain``: commands that answer: what is in force, why, what a change would do.
- ``change``: commands that change configuration, or show what has changed.
- ``operate``: commands for whoever runs a control plane.
- ``identity``: commands for the CA, tokens and certificates.
- ``proxy``: what runs on a workload's machine. ``proxy_config``: what its Envoy has.
- ``discovery``: the control plane: its flags, its registries, its processes.
- ``plane``: a command's way to a control plane. ``lib``: common to all.

May import: everything below.

A subcommand's module is loaded when it is called, and imports its implementation when it runs, so that ``--help`` and
completion are quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module

import click

from mesh_pilot.cli.lib.command_examples import EXAMPLES, with_examples
from mesh_pilot.cli.lib.options import examples
from mesh_pilot.cli.lib.suggestions import WORDS, CommandGroup, flag_mistake
from mesh_pilot.cli.lib.version import version_text

GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Start": {
        "demo": ("mesh_pilot.cli.demo", "See it work: a small mesh with real Envoys."),
        "discovery": ("mesh_pilot.cli.discovery.command", "Run the control plane: serve Istio's YAML to Envoys."),
        "proxy": ("mesh_pilot.cli.proxy", "Make this machine part of the mesh: run its Envoy."),
        "iptables": ("mesh_pilot.cli.proxy.iptables", "Redirect a machine's traffic through its Envoy."),
        "envoy-bootstrap": ("mesh_pilot.cli.proxy.envoy_command", "Write a bootstrap file for an Envoy."),
        "inject": ("mesh_pilot.cli.change.inject", "Add sidecars to the Pods of manifests."),
        "migrate": ("mesh_pilot.cli.change.migrate", "Write what Istio, Consul or Kuma has as a folder of ours."),
    },
    "Change": {
        "analyze": ("mesh_pilot.cli.explain.analyze", "Find what is wrong in configuration, in files or live."),
        "plan": ("mesh_pilot.cli.explain.plan", "Say what a change would do to each proxy."),
        "suggest": ("mesh_pilot.cli.explain.suggest", "Write Sidecars and policies that follow from traffic."),
        "apply": ("mesh_pilot.cli.change.apply", "Put objects of files into the config store."),
        "delete": ("mesh_pilot.cli.change.delete", "Remove objects from the config store."),
        "rollout": ("mesh_pilot.cli.change.rollout", "Roll a change out to a growing share of the proxies."),
        "history": ("mesh_pilot.cli.change.history", "List, show and compare published revisions."),
    },
    "Look": {
        "get": ("mesh_pilot.cli.explain.get", "Print objects of a control plane."),
        "describe": ("mesh_pilot.cli.explain.describe", "Say what applies to a service, a proxy or an object."),
        "why": ("mesh_pilot.cli.explain.why", "Say where a request goes, and which line of YAML decides."),
        "traffic": ("mesh_pilot.cli.explain.traffic", "List who calls whom and how well, as proxies count it."),
        "proxy-status": ("mesh_pilot.cli.explain.proxy_status", "List proxies and what they accepted (short: ps)."),
        "proxy-config": ("mesh_pilot.cli.proxy_config", "Show clusters, listeners, routes of a proxy (short: pc)."),
        "dashboard": ("mesh_pilot.cli.operate.dashboard", "Open the web page of a control plane."),
    },
    "Secure": {
        "token": ("mesh_pilot.cli.identity.token", "Make, list and revoke join tokens for new workloads."),
        "certificate": ("mesh_pilot.cli.identity.certificate", "Get a workload's certificate, by a token."),
        "ca": ("mesh_pilot.cli.identity.ca", "Look after the CA: its root, rotation, revocation."),
    },
    "Operate": {
        "admin": ("mesh_pilot.cli.operate.admin", "Control a plane: log levels, push, disconnect, release."),
        "remote-clusters": ("mesh_pilot.cli.operate.remote_clusters", "List the Kubernetes clusters that are read."),
        "login": ("mesh_pilot.cli.operate.login", "Log in at a control plane as yourself, with a browser."),
        "logout": ("mesh_pilot.cli.operate.logout", "End your login at a control plane."),
        "whoami": ("mesh_pilot.cli.operate.whoami", "Say who you are at a control plane, and what you may do."),
        "context": ("mesh_pilot.cli.operate.context", "Name control planes, and choose which one is asked."),
        "request": ("mesh_pilot.cli.operate.request", "Send a request to a control plane's API."),
        "bug-report": ("mesh_pilot.cli.operate.bug_report", "Collect an archive for a report, without secrets."),
        "mcp": ("mesh_pilot.cli.operate.mcp", "Print what a server offers over MCP or xDS."),
        "completion": ("mesh_pilot.cli.lib.completion", "Print the script that completes words in a shell."),
        "man": ("mesh_pilot.cli.lib.man", "Write man pages."),
        "version": ("mesh_pilot.cli.lib.version", "Print the version."),
    },
}
"""Every command in the order of the help, by what its user is about to do: its module, which has a click ``command``,
and a description of one line."""

COMMANDS = {name: each for group in GROUPS.values() for name, each in group.items()}


ALIASES = {"pc": "proxy-config", "ps": "proxy-status"}
"""Istioctl's short names."""


class _Commands(CommandGroup):
    """Imports a subcommand's module only when it is called: ``version`` does not load Envoy's API."""

    words = WORDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return with_examples(command, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, *rest = args
        if name in ALIASES:
            return super().resolve_command(ctx, [ALIASES[name], *rest])
        if name == "help":
            if not rest:
                click.echo(ctx.get_help(), color=ctx.color)
                ctx.exit()
            return self.resolve_command(ctx, [*rest, "--help"])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), short) for name, (_, short) in group.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples(*EXAMPLES[""]),
)
@click.version_option(message=version_text())
def cli() -> None:
    """A standalone control plane for Envoy that reads the Istio API. Start with: mesh-pilot demo"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. A mistake of the user is one line on standard error, never a traceback."""
    try:
        code = cli.main(args=arguments, prog_name="mesh-pilot", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.UsageError as error:
        text = flag_mistake(error) if isinstance(error, click.NoSuchOption) else error.format_message().rstrip(".")
        where = f"; see {error.ctx.command_path} --help" if error.ctx and not text.endswith("?") else ""
        fail(f"{text}{where}", code=2)
    except click.ClickException as error:
        fail(error.format_message(), code=error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OSError as error:
        if not _is_of_output(error):
            raise
        fail(f"cannot write to standard output: {error.strerror}")
    sys.exit(code if isinstance(code, int) else 0)


def _is_of_output(error: OSError) -> bool:
    """True if standard output has failed, and not a file: one more line fails for the same reason.

    It is then led nowhere, since Python would write the rest at its end, and fail once more.
    """
    try:
        print(flush=True)
    except OSError as again:
        if again.errno == error.errno:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return True
    return False


def fail(message: str, *, code: int = 1) -> None:
    """End the program with one line on standard error."""
    click.echo(f"mesh-pilot: {' '.join(message.split())}", err=True)
    sys.exit(code)
