"""The protocols that serve the model: xDS for proxies, and configuration for other control planes.

- ``config_api``: the World's configuration over MCP and xDS.
- ``ads``: xDS as a state machine, its gRPC binding, the status of every client.
- ``mcp``: the values of the MCP protocol, for both ends of a stream.

May import: ``identity``, ``world``, ``istio``, ``engine``, ``net``, ``model``, ``base``, ``api``.
"""
