"""The manifests of deploy/kubernetes: rendered, checked by the APIs' schemas, their containers run as processes."""
