"""What routers listen on: the servers of all Gateways that select one, merged by port, and what is behind them."""
