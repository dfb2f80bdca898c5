"""``mesh-pilot proxy leave``: what ``proxy join`` did to a machine, undone."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mesh_pilot.cli.proxy.changes import remove, remove_unit
from mesh_pilot.cli.proxy.flags import DEFAULT_FILE
from mesh_pilot.cli.proxy.install import IPTABLES, PROXY
from mesh_pilot.cli.proxy.join import folders


@click.command("leave")
def command() -> None:
    """Undo proxy join: remove the redirection, stop the proxy, remove its units, settings, key and certificate.

    Stop a proxy that runs in the foreground before. The user istio-proxy stays.
    """
    from mesh_pilot.cli.proxy.bundle import FILES

    if os.geteuid() == 0:
        from mesh_pilot.cli.proxy.iptables import clean_command

        for unit in (PROXY, IPTABLES):  # the drain first: rules that go take connections with them
            remove_unit(unit)
        remove(Path(f"/etc/sysusers.d/{PROXY}.conf"))
        clean_command.main([], prog_name="mesh-pilot iptables clean", standalone_mode=False)
    config, state, run = folders()
    for name in (DEFAULT_FILE.name, *FILES.values()):
        remove(config / name)
    for folder in (run, state):
        remove(folder)
