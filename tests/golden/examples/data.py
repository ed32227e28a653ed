"""Fields of the errors of `node_agent.data`."""

from node_agent.data import words
from tests.golden.examples import Examples

EXAMPLES: Examples = {
    words.too_small: [{"name": "length", "value": 0, "least": 1}],
    words.no_such_rank: [{"rank": 4, "world_size": 4}],
    words.fewer_samples_than_ranks: [{"batch_size": 4, "world_size": 5}],
    words.no_full_batch: [{"length": 3, "batch_size": 4}],
    words.another_data_set: [{"name": "length", "saved": 48, "here": 50}],
    words.ranks_disagree: [{"name": "epoch"}],
}
