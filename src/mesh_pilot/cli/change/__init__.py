"""Commands that change configuration, and those that show what has changed."""
