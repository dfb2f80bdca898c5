"""The parts of a control plane that are read here (``state``): readiness, and which sources are stale."""
