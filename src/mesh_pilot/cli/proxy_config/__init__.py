"""``mesh-pilot proxy-config``: the configuration of a proxy, with istioctl's commands, flags and columns.

- ``source``: where a dump comes from: the control plane, a live Envoy, a file.
- ``command``: the commands that list a type.
- ``output``: how a listing is printed.
- ``log``: the log levels of a live Envoy.
"""

from mesh_pilot.cli.proxy_config.command import command

__all__ = ["command"]
