"""A lock and the list of replicas in Consul's KV store."""
