"""HTTP interface of the server: listener, connections, limits, routes, status endpoint."""
