"""OpenTelemetry's protocol over HTTP, in JSON: what is sent to a receiver, for spans and for metrics.

OpenTelemetry's SDK is not used: its exporters have threads and their own HTTP client, and threads do not survive
the fork that makes workers. Source: OpenTelemetry, "OTLP Specification".

- ``push``: metrics at an interval.
- ``data_points``: samples of Prometheus as data points.
- ``client``: one request and its answer.
- ``values``: attributes.
"""
