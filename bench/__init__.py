"""A bench for xDS control planes: how long a change takes to reach every client, and what it costs the server.

``python -m bench --help`` says how to use it, ``docs/performance.md`` what it showed. A swarm of clients that behave as
Envoy does runs in a separate process (``swarm.py``); the control plane under test is another process (``server.py``),
fed with folders of YAML (``mesh.py``); events happen in those files (``events.py``), and what comes of them is a
``Measurement`` (``report.py``).
"""
