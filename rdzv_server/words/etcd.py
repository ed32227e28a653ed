"""Messages about etcd, and about what the server keeps there."""

from collections.abc import Sequence

from rdzv_server.words.storage import WITHOUT_MEMORY as _WITHOUT_MEMORY

ANSWERS = "etcd answers"
CLOSED_STREAM = "it closed the stream"
LEADERSHIP_OVER = "this server is no longer the leader: another server leads, or soon will"
RECORDS_LOST = (
    "etcd no longer has this leader's latest records: it was probably restored from an older snapshot. The next leader "
    "continues with what etcd holds"
)
SNAPSHOT_OR_DELETE = "a snapshot, or delete it"
_OWN_CLUSTER = "a cluster of its own (--store etcd://HOST,HOST,HOST/ANOTHER)"
GIVE_OWN_CLUSTER = f"give this one {_OWN_CLUSTER} {_WITHOUT_MEMORY}"

# Values of `--store`.


def bad_cluster_name(store: str) -> str:
    return f"--store {store}: the cluster's name contains a character that a key cannot contain"


def no_member(store: str, member: str) -> str:
    form = "etcd://HOST[:PORT],HOST[:PORT],.../CLUSTER, where /CLUSTER is optional"
    return f"--store {store}: {member!r} is not an etcd member; give {form}"


# Requests.


def name(members: Sequence[str]) -> str:
    return f"etcd ({', '.join(members)})"


def refuses(etcd: str, problem: str) -> str:
    return f"{etcd} refuses: {problem}"


def cannot_use(etcd: str, problem: str) -> str:
    return f"cannot use {etcd}: {problem}"


def problem(member: str, why: object) -> str:
    return f"{member}: {why}"


def tls_fails(member: str, why: str) -> str:
    return (
        f"{member}: TLS fails: check --etcd-ca, --etcd-cert and --etcd-key, and when the certificates expire; etcd's "
        f"log has the reason ({why})"
    )


def not_permitted(member: str, why: str) -> str:
    return (
        f"{member}: etcd does not permit this ({why}): let the user that --etcd-cert names read and write all keys "
        "below /rdzv-server/"
    )


def no_answer(member: str) -> str:
    return f"{member}: no answer in time"


def no_space(member: str) -> str:
    return (
        f"{member}: etcd has no space left: compact it, defragment it and disarm its alarm, as in "
        "docs/how-to/high-availability.md"
    )


def other_cluster(member: str) -> str:
    return (
        f"{member}: it belongs to another etcd cluster than the other members, or than before: correct --store. "
        "If etcd was restored as another cluster, start every rdzv-server again"
    )


def several_clusters(ids: Sequence[str]) -> str:
    """`ids`: each member that answers, with the id of its cluster."""
    return f"the members in --store belong to different etcd clusters ({', '.join(ids)}): name the members of one"


def members_differ(members: Sequence[str], key: str) -> str:
    return (
        f"{', '.join(members)}: these members of etcd have different values of {key}, so they do not form one cluster: "
        "start them as one (--initial-cluster), or name only one in --store"
    )


def only_with_old_files(why: str) -> str:
    """After SIGHUP. `why`: what happened with the new files."""
    return f"etcd accepts only the current files: {why}"


# The server's data there.


def place(etcd: str, prefix: str) -> str:
    return f"the data of {etcd} below {prefix}"


def of_other_shards(prefix: str, there: str, shards: str) -> str:
    """`there`: the number of shards in the cluster, as text."""
    return (
        f"the cluster below {prefix} has {there}: start this server with --shards {shards}, like the others, or give "
        "it "
        f"{_OWN_CLUSTER}"
    )


def damaged(place: str, why: object) -> str:
    return f"{place} is damaged ({why})"


def no_records(key: str, why: object) -> str:
    return f"{key} does not contain records: {why}"
