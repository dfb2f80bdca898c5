"""Host names of gateways between networks, resolved again and again."""
