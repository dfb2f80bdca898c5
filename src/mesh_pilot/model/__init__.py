"""The domain in frozen values: configs, services, endpoints, proxies, events, resources.

No I/O, no clock, no behaviour beyond what a value knows of itself. Every other room speaks in these words.
May import: ``base``.
"""
