"""Clusters (CDS): outbound and inbound, with the settings of DestinationRules."""
