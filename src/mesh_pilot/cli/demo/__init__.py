"""``mesh-pilot demo``: a small mesh with real Envoys, in half a minute, on this machine alone.

``stage`` starts the processes, ``traffic`` sends requests, ``story`` changes the mesh, ``play`` runs and shows it all.
"""

from __future__ import annotations

import click


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep it running at the end, to experiment with.")
@click.option("--consul", "with_consul", is_flag=True, help="Read the services from a Consul that the demo starts.")
def command(*, keep: bool, with_consul: bool) -> int:
    """See it work: a small mesh with real Envoys, in half a minute.

    Uses free ports of the loopback and a temporary folder, and leaves nothing behind.
    """
    from mesh_pilot.cli.demo.play import play

    return play(keep=keep, with_consul=with_consul)
