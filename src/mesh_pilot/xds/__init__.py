"""The protocols that serve the model: xDS for proxies, and configuration for other control planes.

- ``ads``: xDS as a state machine, its gRPC binding, the status of every client.
- ``config_api``: configuration over MCP and xDS; ``mcp``: the values of that protocol.
"""
