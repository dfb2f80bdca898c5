"""Compares the bytes that two revisions of mesh-pilot send: for every golden scenario, and for random meshes.

    python -m tools.compare_bytes --old v1.2 --new HEAD

Each revision runs as a program (``revision.py``): ``mesh-pilot discovery`` reads files (``meshes.py``), and an xDS
client receives bytes (``client.py``). Nothing here depends on the modules of either revision: these may be moved and
renamed. The scenarios and the generator of meshes are those of the checkout that the command runs in.

Resources are compared by proxy, type and name, byte by byte. Not compared are versions, nonces, logs, and the private
key and certificate chain that each process issues to a workload. The exit code is 0 for the same bytes, 1 for
differences, and 2 if a revision could not be run.
"""
