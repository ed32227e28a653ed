"""Stores of durable facts: memory, a SQLite file, or etcd."""
