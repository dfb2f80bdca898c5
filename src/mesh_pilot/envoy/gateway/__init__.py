"""Gateways: the listeners and route tables of routers, from the servers of all Gateways that select one."""
