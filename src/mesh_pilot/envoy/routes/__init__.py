"""Route tables (RDS) and virtual hosts (VHDS) from the HTTP rules of VirtualServices, for sidecars and gateways.

``tables`` > ``virtual_host`` > ``build`` (a rule as an encoded route) > ``match``, ``action``, ``headers``
"""
