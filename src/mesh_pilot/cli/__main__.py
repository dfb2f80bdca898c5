"""``python -m mesh_pilot.cli``: the same as ``mesh-pilot``."""

from mesh_pilot.cli import main

main()
