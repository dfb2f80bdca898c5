"""MCP, Istio's Mesh Configuration Protocol: reading configuration from a Galley or another mesh-pilot, and serving it.

    source = mcp_source(Server(address="galley:9901"), SinkNode("pilot-1.istio-system"))
    await source.run(events)

The protocol is two pure state machines over the values of `messages`: `sink` for who reads, `serving` for who serves.
`wire` and `xds` encode what they say, over MCP and over ADS; `collections` is the table of what can be read, and
`items` says what a resource is to the World, with `kubernetes` and `cluster` for what only together is a service.
`here` has what is ours alone: names, and the mark by which we know again what we served.

Reading: `intake` judges, answers (`late`, where it would go round) and tells what streams bring, `traffic` counts it;
`source` dials, `asking` finds out how and for what; `sink_server` is dialled; `config_sources` reads addresses; `dump`
reads once. Serving: `shelf` holds the World as collections (`synthetic` for services of registries), `server` gives
them to sinks.
"""
