"""Sources: each one turns a foreign feed (files, a registry, another control plane) into our events.

`base` says what a source is and how it backs off; `supervisor` keeps one running. A package a feed:

    from mesh_pilot.sources.files import file_source
    from mesh_pilot.sources.supervisor import Supervisor

    supervisor = Supervisor(file_source(["config"]), events)
    nursery.start_soon(supervisor.run)

What every source keeps to is written down as tests, in `tests/sources/conformance.py`.
May import: ``rpc``, ``mcp``, ``kubernetes``, ``config``, ``model``, ``api``.
"""
