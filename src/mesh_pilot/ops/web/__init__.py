"""Answers of HTTP that every path uses: text and JSON that pass redaction, and the bundle of the mesh's roots."""
