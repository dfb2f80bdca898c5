"""The routes of VirtualServices for a client: which rules apply to it, for requests and for connections."""
