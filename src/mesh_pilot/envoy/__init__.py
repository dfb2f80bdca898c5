"""Translators: pure functions from (view of the World, key) to Envoy's messages, and the sets that streams read.

A translator is a function ``f(view, *key)`` that reads only through ``view``. With ``@derived`` its results are
remembered, and the memo table knows what depends on what; without, it is a part of whatever calls it. It takes the
least key it can (a scope, a service and port), never the proxy: proxies of a scope then share its result.

May import: ``security``, ``world``, ``incremental``, ``config``, ``model``, ``api``; and Envoy's API.
"""
