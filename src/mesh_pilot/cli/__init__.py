"""The command ``mesh-pilot``: a module a command; this one only names them. May import: everything."""
