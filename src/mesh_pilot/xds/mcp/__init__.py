"""MCP, Istio's Mesh Configuration Protocol (v1alpha1), as values: what its clients and servers have in common.

- `messages`: requests, responses and resources, free of protobuf and gRPC.
- `collections`: the table of collections, by their names over MCP and over xDS.
- `wire`: the protobuf forms of `messages` for each gRPC method, for both ends of a stream.
- `identity`: this control plane's identity towards MCP peers, and the annotation that breaks configuration loops.

``sources/mcp`` is the client (MCP's sink), ``config_api`` the server (MCP's source).
"""
