"""Access logs and tracing, with Telemetry's providers."""
