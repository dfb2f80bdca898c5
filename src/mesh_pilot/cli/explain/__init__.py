"""Commands that answer: what is in force, why, and what a change would do."""
