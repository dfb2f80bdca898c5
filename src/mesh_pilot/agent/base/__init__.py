"""Common to the agent's parts: values to wait for, encoded messages, what the next version takes over, memory."""
