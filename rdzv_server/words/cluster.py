"""Messages of one of several servers about its part of the runs: which server leads, and why no longer."""

from rdzv_protocol.text import count


def _of(shard: int | None) -> str:
    return "" if shard is None else f"shard {shard}: "


def takes_over(shard: int | None, leadership: int) -> str:
    """`shard`: None in a cluster with one shard."""
    return f"{_of(shard)}taking over as leader (leadership {leadership})"


def leads(shard: int | None, runs: int) -> str:
    return f"{_of(shard)}leading: {count(runs, 'run')}"


def follows(shard: int | None, leader: str, leadership: int) -> str:
    return f"{_of(shard)}following {leader} (leadership {leadership})"


def no_longer_leads(shard: int | None, why: str) -> str:
    return f"{_of(shard)}no longer leading: {why}"


KEY_DELETED = "its key in etcd was deleted"
LEASE_EXPIRED = "its lease in etcd expired"
LOST_CHANGES = "etcd lost changes"


def hands_over_to(address: str) -> str:
    return f"handing over to {address}, which leads fewer shards"


def shard_broken(shard: int, why: str, again_s: float) -> str:
    return (
        f"shard {shard}: this server cannot lead it, and tries again after {again_s:g} s if no other server leads it; "
        f"the other shards continue: {why}"
    )


CANNOT_TAKE_OVER = "cannot take over yet"
CAN_TAKE_OVER = "etcd accepts requests again: servers can take over"
LEASE_CONSEQUENCE = "the server rejects requests until it has renewed the lease; workers keep running"
LEASE_RENEWED = "etcd answers again: this server has renewed its lease, and leads what it led before"
LEASE_ENDED = "etcd answers again: this server's lease has ended, and it gets a new one"


def lease_not_renewed(why: str) -> str:
    return f"cannot renew this server's lease: {why}"


def same_address(address: str) -> str:
    return f"another server runs as {address}, too: give each server its own address with --advertise"


def lost_changes(etcd: str, revision: int, before: int) -> str:
    return (
        f"{etcd} lost changes: its revision is {revision} and was {before}. It was probably started without its data, "
        "or from an older snapshot. The servers continue with what it holds; a run that it does not hold begins again, "
        "with a new restart budget. To keep the runs, stop the servers and restore a newer snapshot"
    )


def cannot_cordon(node_id: str, why: str) -> str:
    return f"cannot cordon node {node_id} for this shard, too: {why}"


CORDONS_NOT_FOLLOWED = "this server cannot read from etcd which nodes are cordoned"


def keeps_cordons(why: str) -> str:
    return f"{CORDONS_NOT_FOLLOWED}, and keeps the cordons that it knows: {why}"


# Answers.


def other_leads(address: str) -> str:
    return f"{address} is the leader: ask there"


UNKNOWN_LEADER = "this server is not the leader, and does not know the leader"
UNCERTAIN = "etcd does not answer, so this server cannot tell whether it still leads"
LEADER_UNCERTAIN = "etcd does not answer, so this server cannot tell which server leads"
NO_LEADER = "no leader is known"


def no_leader_found(outage: str) -> str:
    return f"this server cannot find the leader: {outage}"
