"""The meaning of single values and of removed kinds, for the rules and the rooms above: durations, claims, Wasm."""
