"""An HTTP/1.1 server on Trio for ASGI apps: of the control plane's web and metrics ports, and of the agent's.

- ``server``: connections, their number and their counts.
- ``connection``: one connection, by h11.
- ``wrong_port``: the answer to an HTTP/2 client.
"""
