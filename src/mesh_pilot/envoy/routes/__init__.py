"""Route tables (RDS): virtual hosts and routes from the HTTP rules of VirtualServices, for sidecars and gateways.

``build`` renders a rule as an encoded route with the help of the files named for its parts (``match``, ``action``,
``headers``, ``retry``, ...); ``virtual_host`` and ``tables`` put encoded routes together.
"""
