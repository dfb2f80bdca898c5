"""``mesh-pilot migrate``: configuration of another mesh as a folder of ours, with a list of what could not be taken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from mesh_pilot.cli.lib.consul_agent import ConsulAgentFlags
from mesh_pilot.cli.lib.options import SectionedCommand, SettingOption, one_line
from mesh_pilot.cli.lib.terminal import print_value

if TYPE_CHECKING:
    from mesh_pilot.migration.base.record import Migration
    from mesh_pilot.migration.folder.sources import ForeignFiles

_FILE = click.Path(path_type=Path)
_LIVE = "consul"
_EXAMPLES = """\b
Examples:
  kubectl get all,endpointslices,cm,istio-io -A -o yaml | mesh-pilot migrate - --to ./mesh
  mesh-pilot migrate bug-report/ --to ./mesh --dry-run
  mesh-pilot migrate --from consul --to ./mesh --consul-server-url http://127.0.0.1:8500
  mesh-pilot migrate entries.json health.json --from consul --to ./mesh --services
  mesh-pilot migrate kuma/ --from kuma --to ./mesh
"""


def _consul_flags(command: Callable[..., object]) -> Callable[..., object]:
    """Add the flags of a Consul to ask."""
    for name, attributes in reversed(_CONSUL_FLAGS):
        command = click.option(name, cls=SettingOption, section="A Consul agent to ask", **attributes)(command)
    return command


_CONSUL_FLAGS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("--consul-server-url", {"default": "", "help": "The Consul agent to ask.  [default: CONSUL_HTTP_ADDR]"}),
    ("--consul-datacenter", {"default": "", "help": "Datacenter to read.  [default: the agent's own]"}),
    ("--consul-token", {"default": "", "help": "ACL token; better in a file or the environment."}),
    ("--consul-token-file", {"type": _FILE, "help": "File with the ACL token."}),
    ("--consul-ca-file", {"type": _FILE, "help": "PEM file of the CA of the agent's certificate."}),
    ("--consul-client-cert", {"type": _FILE, "help": "PEM file of our certificate towards the agent."}),
    ("--consul-client-key", {"type": _FILE, "help": "PEM file of its key."}),
    ("--consul-tls-server-name", {"default": "", "help": "Name in the agent's certificate, if not that of the URL."}),
    ("--consul-domain", {"default": "consul", "help": "Hosts are NAME.service.DOMAIN.  [default: consul]"}),
    ("--consul-mesh-namespace", {"default": "default", "help": "Namespace of services that do not name one."}),
    (
        "--consul-intention-default",
        {"type": click.Choice(["auto", "allow", "deny"]), "default": "auto", "help": "Without an intention."},
    ),
)


@click.command("migrate", cls=SectionedCommand, epilog=_EXAMPLES)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option("--to", "folder", required=True, type=_FILE, help="The folder to write.")
@click.option(
    "--from",
    "system",
    type=click.Choice(["kubernetes", "consul", "kuma"]),
    help="The mesh that it is from.  [default: what the sources are for certain]",
)
@click.option("--dry-run", is_flag=True, help="Write nothing; say what would be written, and what not.")
@click.option("--force", is_flag=True, help="Write into a folder that is not empty, over any file in the way.")
@click.option("--merge", is_flag=True, help="The same, but keep files that are not of this command, or changed since.")
@click.option("--strict", is_flag=True, help="Exit with 1 if something of the mesh is not taken.")
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="How to print the list.")
@click.option("--services/--no-services", default=None, help="Services of a registry become ServiceEntries."
              "  [default: those of Kubernetes do, those of Consul stay there]")  # fmt: skip
@click.option("--secrets", is_flag=True, help="Copy private keys that Gateways name, for their owner to read only.")
@click.option("--domain", default="cluster.local", help="Domain of a Kubernetes cluster.  [default: cluster.local]")
@_consul_flags
def command(sources: tuple[str, ...], folder: Path, system: str | None, output: str, strict: bool, **flags: Any) -> int:
    """Write the configuration of another mesh as a folder for mesh-pilot, and list what could not be taken.

    SOURCE is a file, a folder, or - for standard input: objects of Kubernetes and Istio as kubectl or istioctl dump
    them, config entries and catalogs of Consul, or resources of Kuma. Without a SOURCE, a Consul agent is asked.

    The folder gets config/, mesh.yaml, networks.yaml, secrets/ and MIGRATION.md, which lists every object and field
    that was not taken, with place, reason and what to do.

    Exits with 0 if the folder is written, 1 if a source cannot be read, the folder not be written, nothing be taken, or
    with --strict something not be taken, 2 for a wrong flag, sources of several meshes, or a folder that is not empty.
    """
    from mesh_pilot.cli.lib.logs import LogFormat, LogLevels, configure

    configure(LogLevels(50), LogFormat.TEXT, sys.stderr)
    if flags["force"] and flags["merge"]:
        raise click.UsageError("--force writes over every file in the way, --merge keeps some: give one of them")
    migration = _migrate(sources, system, flags)
    from mesh_pilot.migration.folder.report import as_json, as_lines, files_of, needed
    from mesh_pilot.migration.folder.writing import FolderError, NotEmptyError, write_folder

    try:
        outcome = write_folder(
            migration, folder, is_dry=flags["dry_run"], is_forced=flags["force"], is_merged=flags["merge"]
        )
    except NotEmptyError as error:
        raise click.UsageError(str(error)) from None
    except FolderError as error:
        raise click.ClickException(str(error)) from None
    if output == "json":
        print_value(as_json(migration, outcome), "json")
    else:
        from mesh_pilot.cli.lib.terminal import plain

        for line in as_lines(migration, outcome, str(folder), is_dry=flags["dry_run"]):
            click.echo(plain(line))
        if not flags["dry_run"]:
            click.echo(f"the whole list: {folder}/MIGRATION.md")
    if not files_of(migration):
        raise click.ClickException("nothing was taken from the sources: there is nothing in them that mesh-pilot reads")
    return 1 if strict and (needed(migration) or outcome.kept) else 0


def _migrate(sources: tuple[str, ...], system: str | None, flags: Mapping[str, Any]) -> Migration:
    from mesh_pilot.migration.folder.sources import SourceFileError, convert, read_files

    if sources:
        with one_line(SourceFileError):
            found = read_files(sources, sys.stdin.buffer)
        return convert(found, _system_of(found, system), flags)
    if system not in (None, _LIVE):
        raise click.UsageError(f"name a SOURCE: files, folders, or - for standard input; {system} is read from files")
    url = flags["consul_server_url"] or os.environ.get("CONSUL_HTTP_ADDR", "")
    if not url:
        raise click.UsageError("name a SOURCE, or a Consul agent to ask: --consul-server-url, or CONSUL_HTTP_ADDR")
    from mesh_pilot.migration.folder.sources import read_live_consul

    # The values of flags that discovery has too. It reads several datacenters, which are lists there.
    own = {field.name: flags[field.name] for field in attrs.fields(ConsulAgentFlags)}
    agent = ConsulAgentFlags(**own | {"consul_server_url": (url,), "consul_datacenter": ()}).agent(url, os.environ)
    with one_line(SourceFileError):
        live, more = read_live_consul(agent, flags)
    return convert(live, _LIVE, {**flags, **more})


def _system_of(found: ForeignFiles, said: str | None) -> str:
    """The mesh that objects are of, as it was said, or as it is for certain. Raises UsageError."""
    from mesh_pilot.migration.folder.detection import MeshSystem, systems_of

    systems = systems_of(found.objects)
    if said is not None:
        if systems and MeshSystem(said) not in systems:
            system, first = next(iter(systems.items()))
            raise click.UsageError(
                f"--from {said}: nothing in the sources is of {said}; {first.where} is of {system.value}"
            )
        return said
    if len(systems) == 1:
        return next(iter(systems)).value
    if not systems:
        raise click.UsageError("nothing in the sources says of which mesh it is: give --from")
    named = "; ".join(f"{each.where} is of {system.value}" for system, each in sorted(systems.items()))
    raise click.UsageError(f"the sources are of several meshes ({named}): give --from, and migrate one after another")
