"""Which resources a proxy is sent, and the sets of them that streams read."""
