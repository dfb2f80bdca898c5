"""The configuration API: serves the World's configuration to other control planes, over MCP and over xDS.

- `served_collections`: the World as collections of MCP resources, kept up to date.
- `stream`: one client's stream as a pure state machine.
- `server`: the gRPC methods of MCP, and the task pair of a stream. Streams of the ``api`` generator come from ``xds``.
"""
