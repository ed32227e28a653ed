"""Warning about machines that take part under one node id."""

from rdzv_protocol.text import count


def shared(node_id: str, machines: int, addresses: str) -> str:
    """`addresses`: addresses of some of the machines."""
    return (
        f"{count(machines, 'machine')} take part as node {node_id} ({addresses}): give each its own --node-id. Until "
        "then, a cordon or a drain affects all of them, and an agent can take the place of another machine's agent"
    )
