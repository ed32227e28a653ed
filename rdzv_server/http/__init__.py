"""HTTP face of the server: listener, connections, limits, routes, status endpoint."""
