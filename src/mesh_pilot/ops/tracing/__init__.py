"""OpenTelemetry traces of changes: a trace for each revision, from its first event to the last answer of a proxy.

``traces`` turns what the reducer and the streams report into spans, ``otlp`` sends these. Off unless
``--otel-traces`` names a receiver; then a revision and a response cost a few entries in dictionaries.
"""
