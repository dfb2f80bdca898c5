"""What a VirtualService's HTTP rules become: one topic a file, shared by the route tables of sidecars and routers.

``rules`` reads the rules (delegates merged in), ``select`` finds those that are for a client, ``build`` turns each
into an encoded route with the help of the topics, ``table`` puts encoded routes together.
"""
