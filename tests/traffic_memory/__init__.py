"""The memory of traffic beyond ten minutes."""
