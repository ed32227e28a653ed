"""How many shards a cluster has: written down by its first server, and the same for as long as the cluster lasts."""

from rdzv_server.storage.base import StoreBroken
from rdzv_server.storage.etcd_client import EtcdClient, is_free, put

SCHEMA = "shards "
"""What stands where a cluster without shards has the schema of its records, so that none takes one for the other."""


async def settle(client: EtcdClient, prefix: str, shards: int) -> None:
    """Write the number down in a new cluster. Raises `StoreBroken` if it has another one, or `StoreUnavailable`."""
    key, value = f"{prefix}/schema".encode(), f"{SCHEMA}{shards}".encode()
    is_new = [is_free(key), is_free(f"{prefix}/leader".encode())]
    done, _ = await client.transact(is_new, [put(key, value)])
    if done:
        return
    found, _ = await client.get(key)
    if found is None or found.value != value:
        raise another(prefix, found.value if found else b"")


def another(prefix: str, schema: bytes) -> StoreBroken:
    """The cluster has another number of shards than this server was told."""
    text = schema.decode(errors="replace")
    there = text.removeprefix(SCHEMA) if text.startswith(SCHEMA) else "1"
    return StoreBroken(
        f"the cluster below {prefix} has {there} shard{'s' * (there != '1')}: start this server with --shards {there}, "
        "as the others, or give it a cluster of its own (--store etcd://HOST,HOST,HOST/ANOTHER)"
    )
