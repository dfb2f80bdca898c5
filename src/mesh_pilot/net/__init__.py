"""Servers and clients of gRPC and HTTP on Trio, and the fetching of documents from third parties."""
