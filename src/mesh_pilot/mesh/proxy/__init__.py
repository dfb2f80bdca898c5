"""The parts of a proxy that its configuration depends on: scope, locality, registration, ProxyConfig; and its plans."""
