"""VirtualServices: rules with their delegates, and Consul's chains in them."""
