"""Sources: each turns a foreign feed into events. Those of Consul and Kubernetes lie in `consul` and `kubernetes`.

- ``config_store``: the way back: what is written where a source reads.
- ``mcp``: other control planes, over MCP and xDS.
- ``acme``: certificates of gateways that are ordered.
- ``files``: folders of YAML and JSON.
- ``wasm``, ``jwks``, ``gateway_hosts``: what objects name by URL: modules, key sets, hosts of gateways.
- ``base``: the contract of a source; its published state, which turns readings into events; the supervisor::

    from mesh_pilot.sources.base.supervisor import Supervisor
    from mesh_pilot.sources.files import file_source

    supervisor = Supervisor(file_source(["config"]), events)
    nursery.start_soon(supervisor.run)

Every source passes the tests in `tests/sources/conformance.py`.
May import: ``xds``, ``identity``, ``mesh``, ``istio``, ``net``, ``model``, ``base``, ``api``.
"""
