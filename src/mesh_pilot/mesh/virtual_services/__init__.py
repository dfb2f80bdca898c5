"""VirtualServices: rules with their delegates, the rules for a client, and routes for connections (tls, tcp)."""
