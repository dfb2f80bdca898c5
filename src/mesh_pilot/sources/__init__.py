"""Sources: each one turns a foreign feed (files, a registry, another control plane) into events.

`base` is the contract of a source, `published` turns its readings into events, `supervisor` keeps it running. Each feed
has a package:

    from mesh_pilot.sources.files import file_source
    from mesh_pilot.sources.base.supervisor import Supervisor

    supervisor = Supervisor(file_source(["config"]), events)
    nursery.start_soon(supervisor.run)

Every source passes the tests in `tests/sources/conformance.py`.
May import: ``consul_mesh``, ``rpc``, ``mcp``, ``kubernetes``, ``apiserver``, ``fetching``, ``config``, ``model``,
``api``.
"""
