"""Clusters (CDS): outbound, inbound, and what DestinationRules set on them."""
