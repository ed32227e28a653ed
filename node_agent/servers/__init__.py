"""Where the server is: at an endpoint with failover, hosted by this agent, or in its own process."""
