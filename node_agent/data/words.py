"""Errors of `node_agent.data`."""

NOT_ELASTIC = "the loader needs an ElasticSampler as its batch_sampler, or an ElasticShards as its dataset"
PERSISTENT_WORKERS = "an ElasticShards cannot have persistent_workers: they would begin each epoch at the same samples"
NO_STATE = "merge_states needs the state of at least one rank"


def too_small(name: str, value: int, least: int) -> str:
    return f"{name} is {value}, but must be at least {least}"


def no_such_rank(rank: int, world_size: int) -> str:
    return f"rank is {rank}, but must be from 0 to {world_size - 1}, because world_size is {world_size}"


def fewer_samples_than_ranks(batch_size: int, world_size: int) -> str:
    return f"a global batch of {batch_size} samples cannot be dealt to {world_size} ranks: increase batch_size"


def no_full_batch(length: int, batch_size: int) -> str:
    return (
        f"drop_last drops all {length} samples, because a global batch has {batch_size}: "
        "decrease batch_size, or leave drop_last out"
    )


def another_data_set(name: str, saved: object, here: object) -> str:
    return (
        f"the saved position is of another data set: {name} was {saved} and is {here}; "
        "use the data set of the checkpoint, or start without the checkpoint"
    )


def ranks_disagree(name: str) -> str:
    return f"the states differ in {name}: take them from all ranks after the same step"
