"""The bootstrap file of an Envoy, for ``mesh-pilot proxy`` and ``mesh-pilot envoy-bootstrap``."""
