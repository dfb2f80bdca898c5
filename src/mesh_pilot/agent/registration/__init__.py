"""The service of this machine in the local Consul agent."""
