"""Ways to reach a server: at an endpoint with failover, hosted by this agent, or within its process."""
