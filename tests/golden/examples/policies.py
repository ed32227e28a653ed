"""Examples of the policies' messages."""

from rdzv_server.core.policies.network_check import words as network

EXAMPLES = {
    network.unfit: [{"node_id": "<node_id>", "failed": [network.failed_with(f"<peer {n}>", "<why>") for n in (1, 2)]}],
}
