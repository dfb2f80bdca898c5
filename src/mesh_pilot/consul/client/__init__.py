"""Consul's HTTP API.

- `client`: the endpoints of python-consul2 over httpx, on the connections of `connections`. `settings`: of an agent.
- `api`: the questions of a source, which `service_filter` may narrow. `blocking_query`: one of them again and again,
  and what all of them do during an outage. `query_pool`: few of them for many services.
- `kv`: entries, sessions and transactions of the KV store, for locks, records and stores.

Rules of blocking queries: Consul, "HTTP API: Features, Blocking Queries".
"""
