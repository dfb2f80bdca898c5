"""Join tokens, and the files that keep them."""
