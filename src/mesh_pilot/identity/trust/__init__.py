"""Callers, trust domains with their bundles, and the roots that proxies trust."""
