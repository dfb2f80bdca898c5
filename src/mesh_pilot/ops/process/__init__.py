"""The process itself: profiles of it, and memory that is given back to the system."""
