"""Translators: pure functions from (view of the World, key) to Envoy's messages, and the sets that streams read.

A translator is an ordinary function ``f(view, *key)`` that reads only through ``view`` and calls others by
``view.get(f, *key)``, so that the memo table knows what depends on what. It takes the least key it can (a scope, a
service and port), never the proxy: proxies of a scope then share its result.

May import: ``security``, ``world``, ``incremental``, ``config``, ``model``, ``api``; and Envoy's API.
"""
