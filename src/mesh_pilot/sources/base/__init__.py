"""The contract of a source, its published state, its supervisor."""
