"""Messages about servers that do not answer, or not as expected."""

from collections.abc import Mapping, Sequence

import rdzv_protocol
from rdzv_protocol import paths


def unreadable_token(why: str, source: str) -> str:
    return f"cannot read the token: {why} ({source})"


PUT_TOKEN_THERE = "put the token into that file, or name the file that has it: --token-file FILE"


def bad_tls(why: str, source: str) -> str:
    return f"{why} ({source})"


def no_server(what: str) -> str:
    return f"this address belongs to {what}"


NO_ANSWER_OF_A_SERVER = "another program, whose answer is not from rdzv-server"
NO_HTTP = "another program, which does not speak HTTP"
AN_AGENTS_METRICS = "a node-agent's --metrics-port"


def other_status(status: int) -> str:
    return f"another program, which answers with HTTP status {status}"


NO_ANSWER_IN_TIME = "no answer in time"
BROKEN_OFF = "the connection broke"


def no_host(why: str | None) -> str:
    return f"its name cannot be looked up: {why}"


def answer_broken_off(why: str) -> str:
    return f"the answer ended early: {why}"


def answer_too_large(most: int) -> str:
    """`most`: limit in bytes."""
    return f"its answer has more than {most / 2**30:g} GiB, which no rdzv-server sends"


def answer_takes_too_long(limit_s: float) -> str:
    return f"its answer did not end within {limit_s:g} s"


DOES_NOT_LEAD = "it does not lead"


def unknown_request(at: str) -> str:
    return (
        f"the rdzv-server at {at} does not know this request: "
        f"run a server of the same build as this rdzvctl, which is version {rdzv_protocol.VERSION}"
    )


def speaks_tls(at: str) -> str:
    return f"{at} speaks TLS: give --tls-ca FILE, or --tls-ca system"


def asks_for_token(at: str) -> str:
    return f"{at} asks for a token: give --token-file FILE, or set RDZV_TOKEN_FILE"


def kept_out(at: str, why: str) -> str:
    return f"{at}: {why}"


def _tried(failures: Mapping[str, str]) -> str:
    return "; ".join(f"{at}: {why}" for at, why in failures.items())


def no_server_leads(failures: Mapping[str, str]) -> str:
    """`failures`: why none of them leads, by address."""
    return f"no rdzv-server leads: {_tried(failures)}"


def cannot_now(failures: Mapping[str, str]) -> str:
    """`failures`: why none of them can do it, by address."""
    return f"no rdzv-server can do this now: {_tried(failures)}"


def waits_for_leader(why: str, limit_s: float) -> str:
    return f"{why}; trying again for {limit_s:g} s at most (--timeout)"


WORKERS_RUN = "workers keep running meanwhile; try again, or read the server's log"


def no_server_answers(failures: Mapping[str, str]) -> str:
    return f"no rdzv-server answers: {_tried(failures)}"


def asked_because(source: str) -> str:
    return f"rdzvctl used {source}"


NAME_ITS_PORT = f"name rdzv-server's own port, {paths.DEFAULT_PORT} unless it has --port: rdzvctl --endpoint HOST:PORT"
_ANOTHER = "To ask another server, give --endpoint HOST:PORT, set RDZV_ENDPOINT, or use a context"
IS_IT_RUNNING = f"check that rdzv-server runs there and that no firewall blocks the connection. {_ANOTHER}"
CHECK_NAME = f"check the name, and this machine's name servers. {_ANOTHER}"


def does_not_answer(at: str, why: str) -> str:
    return f"the rdzv-server at {at} does not answer: {why}"


def unknown_runs(shards: Sequence[int], leader: str | None, why: str, *, are_shown: bool) -> str:
    """`shards`: the leader's shards; empty if there is only one shard. `are_shown`: whether a server that does not
    lead has shown the runs."""
    which = f"of shard{'s' * (len(shards) > 1)} {', '.join(map(str, shards))} " if shards else ""
    state = "may have changed since" if are_shown else "are unknown"
    return f"the runs {which}{state}: {leader or 'no server'}: {why}"


def lacks_field(versions: Mapping[str, str], field: str) -> str:
    """`versions`: versions of the servers that were asked, by address."""
    servers = " and ".join(f"rdzv-server {version} at {at}" for at, version in versions.items())
    return f"{servers or 'the server'} does not send `{field}`, which rdzvctl {rdzv_protocol.VERSION} needs for this"


_SHOWS_ALL = "rdzvctl status --json shows all that it sends"
OTHER_BUILD = f"both have the same version number, but different builds: install both from the same build; {_SHOWS_ALL}"
OTHER_VERSION = f"the server is probably older: upgrade it, or use the rdzvctl of its version; {_SHOWS_ALL}"
