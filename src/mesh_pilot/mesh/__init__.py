"""The intermediate form: the meaning of Istio's objects for a proxy, in plain values.

Functions here read the World through a ``View``. Their results are, for example, the services that a scope may reach
(``sidecar_scope``), the DestinationRule for a client (``destination_rules``), the HTTP rules of a VirtualService for a
client (``virtual_services``), the virtual hosts of a route table (``virtual_hosts``), listeners that merge or conflict
(``outbound``, ``inbound``, ``gateway_servers``), and mTLS modes (``peer_authentication``). ``envoy`` renders these
values as Envoy's messages.

A function takes the least key that it needs (a scope, a service and port), never the proxy, so that proxies with equal
keys share the result. ``@derived`` marks results that the memo table stores (see ``incremental``).

May import: ``world``, ``istio``, ``engine``, ``model``, ``base``, ``api``; never Envoy's API.
"""
