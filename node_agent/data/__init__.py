"""Data loading whose position does not depend on the number of workers. It imports neither torch nor the agent.

`ElasticSampler` deals each global batch of a data set with a length to the ranks, and `ElasticShards` deals shards.
`ElasticLoader` wraps a `DataLoader`, and its state is what the training loop has received.
"""

from node_agent.data.loader import ElasticLoader, merge_states
from node_agent.data.sampler import ElasticSampler
from node_agent.data.shards import ElasticShards

__all__ = ["ElasticLoader", "ElasticSampler", "ElasticShards", "merge_states"]
