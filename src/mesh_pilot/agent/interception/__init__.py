"""The rules of iptables or nftables by which traffic of the application goes through Envoy.

- ``settings``: what is captured and what is not, with the defaults of Istio's ``istio-iptables``.
- ``rules``: the rules themselves, a pure function of the settings, in a form of neither tool.
- ``iptables``, ``nftables``: their text for each tool.
- ``routes``: the routing that TPROXY needs.
- ``firewall``: applies and removes them, as a whole or not at all.
"""
