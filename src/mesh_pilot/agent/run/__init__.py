"""The agent, put together: its tasks, and the bootstrap that its Envoy starts with."""
