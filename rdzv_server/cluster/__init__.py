"""Several servers on one etcd cluster: election, failover, shards."""
