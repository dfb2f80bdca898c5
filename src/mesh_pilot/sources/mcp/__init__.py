"""Sources that read configuration over MCP or xDS, from a Galley, an istiod or another mesh-pilot.

    source = mcp_source(McpServer(address="galley:9901"))
    await source.run(events)

- `source` dials a server (`negotiation`: its method and collections); `sink_server` is dialled by one.
- `receiver`: the half that both have in common. It runs streams (`pacing`: when requests go out), validates responses
  with the state machine `sink`, and sends the events of `translate`.
- `statistics`: of both; `dump` reads a server once, for ``mcp dump``.

``config_api`` is the other end.
"""
