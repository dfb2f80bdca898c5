"""The services that a scope reaches, and which of several namespaces' objects has a host."""
