"""The rules of iptables or nftables by which traffic of the application goes through Envoy."""
