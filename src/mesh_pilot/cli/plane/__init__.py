"""A command's way to a control plane: contexts, requests, its admin socket; and to an Envoy's admin port."""
