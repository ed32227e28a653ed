"""OpenAPI 3.1 document of the HTTP API, derived from the messages and the routes."""
