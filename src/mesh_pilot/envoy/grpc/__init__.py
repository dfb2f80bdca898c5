"""Resources of proxyless gRPC clients and servers (gRFCs A27 to A41)."""
