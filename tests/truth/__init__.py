"""Which version of an object a proxy has, and why."""
