"""Changes and problems, counted and logged when they happen: the reducer and a clock call these, not requests.

- ``changes``: counts each revision, and logs refused and recovered objects.
- ``condition_log``, ``problem_log``: conditions of objects, and problems of proxies, once each.
"""
