"""``mesh-pilot proxy``: the agent next to an Envoy, on a machine of the mesh.

``flags`` lists the settings; ``istio_names``, ``machine`` and ``consul_service`` find their values where no
flag gives them, ``pod_info`` those of a Pod; ``settings`` makes the agent's settings of all of them; ``run`` runs it.
``install`` prints units, ``wait`` waits for readiness. ``join`` does all that a machine needs by one file, a
``bundle``, and ``leave`` undoes it; ``changes`` is how they change the machine.
"""

from __future__ import annotations

import click

from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.proxy.command import proxy_command
from mesh_pilot.cli.proxy.install import command as install
from mesh_pilot.cli.proxy.join import command as join
from mesh_pilot.cli.proxy.leave import command as leave
from mesh_pilot.cli.proxy.wait import command as wait


@click.group("proxy", cls=CommandGroup)
def command() -> None:
    """Make this machine part of the mesh: an Envoy with certificates, configuration, DNS, health and metrics."""


command.add_command(join)
command.add_command(leave)
command.add_command(proxy_command("sidecar", "Run the proxy of a workload on this machine."))
command.add_command(proxy_command("router", "Run a gateway on this machine."))
command.add_command(install)
command.add_command(wait)
