"""MCP, Istio's Mesh Configuration Protocol: reading configuration from a Galley or another mesh-pilot, and serving it.

The protocol is two pure state machines over the values of `messages`: `sink` for who reads, `serving` for who serves.
`wire` has their encodings, `collections` the table of what can be read, and `items` what a resource is to the World.
"""
