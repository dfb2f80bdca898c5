"""HTTP for people and machines: ``/ready``, ``/metrics``, ``/debug/*`` and a web page of what goes on.

Reads the other rooms (their ``statistics()``, the status registry, the World) and changes nothing. ``state`` names the
parts it reads; ``app`` maps paths to what they answer; ``http`` serves an app on Trio.
May import: ``xds`` and down.
"""
