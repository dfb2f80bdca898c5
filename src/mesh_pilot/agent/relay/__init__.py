"""Between Envoy and the control plane: one connection to the best of several, and the last good answers on disk."""
