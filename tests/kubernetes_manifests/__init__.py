"""Manifests of deploy/kubernetes: rendered, checked by the APIs' schemas, with their containers run as processes."""
