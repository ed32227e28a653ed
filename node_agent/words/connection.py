"""Messages about an agent's connection to rdzv-server: what failed, how long it tries again, what to check.

`failure`: an exchange's failure in words, with the stage that it reached and a detail. The details are below. `lives`:
the server itself answers that it cannot serve now, so only its silence counts for the limit.
"""

from math import inf
from typing import Literal

Stage = Literal[
    "name", "connect", "TLS", "HTTP", "another program", "port", "host", "proxy", "server", "address", "leader"
]
_HINTS: dict[Stage, str] = {
    "name": "check the name in --endpoint, or in --master-addr, and this node's name servers",
    "connect": "check that rdzv-server runs there and that no firewall blocks the connection",
    "TLS": "",  # the failure itself contains the advice
    "HTTP": "check that this port is rdzv-server's",
    "another program": "name rdzv-server's port, not that of etcd or another store, or stop that program",
    "port": "another program listens at this port of this node: stop it, or choose another port",
    "host": "this node hosts rdzv-server: give --master-addr or --rdzv-endpoint an address of this node",
    "proxy": "check that rdzv-server runs, and that the proxy reaches it and allows two connections for each agent",
    "server": "read rdzv-server's log",
    "address": "name rdzv-server by a global address, or give --local-addr",
    "leader": "check that etcd runs, and that rdzv-server reaches it",
}


def hint(stage: Stage) -> str:
    """Return advice on a failure, by the stage that it reached. Empty if the failure itself contains it."""
    return _HINTS[stage]


def _advice(stage: Stage) -> str:
    return f": {hint(stage)}" if hint(stage) else ""


# This node.


def own_name_unknown(name: str, why: str) -> str:
    return f"other nodes should reach this node at {name}, but the name is unknown here ({why}): check --local-addr"


# The server is out of reach, or back.


def not_answered_yet(server: str) -> str:
    return f"waiting for rdzv-server at {server} to answer. If it has not just started, {hint('connect')}"


def not_reached_yet(server: str, failure: str, longest_s: float, stage: Stage) -> str:
    return f"cannot reach rdzv-server at {server} yet ({failure}); retrying{_limit(longest_s)}{_advice(stage)}"


def server_lost(server: str, failure: str, has_workers: bool, longest_s: float, lives: bool = False) -> str:
    running = "workers keep running; " if has_workers else ""
    return f"lost rdzv-server at {server} ({failure}); {running}retrying{_limit(longest_s, lives)}"


def still_no_server(server: str, failure: str, longest_s: float, lives: bool) -> str:
    limit = f"; retrying{_limit(longest_s, lives)}" if lives else ""
    return f"still no rdzv-server at {server} ({failure}){limit}"


def server_reached(server: str, after_s: float) -> str:
    return f"reached rdzv-server at {server} after {after_s:.1f} s"


def server_given_up(server: str, within_s: float, failure: str, stage: Stage) -> str:
    return f"no rdzv-server at {server} within {within_s:g} s ({failure}){_advice(stage)}"


def server_unusable(server: str, failure: str, stage: Stage) -> str:
    """For a failure that another try cannot fix."""
    return f"cannot use rdzv-server at {server} ({failure}){_advice(stage)}"


def success_not_delivered(server: str, failure: str, longest_s: float, lives: bool) -> str:
    waits = f"waiting for the server{_limit(longest_s, lives)}"
    return f"all workers exited 0, but rdzv-server at {server} does not know this ({failure}); {waits}"


def leave_not_delivered(server: str) -> str:
    return f"could not tell rdzv-server at {server} that this node is leaving; the server may count it as lost"


def poll_cut(server: str, open_s: float, failure: str, hold_s: float) -> str:
    """Logged once, if a proxy or firewall ends polls that wait for an answer."""
    return (
        f"a proxy or firewall in front of rdzv-server at {server} cut a poll after {open_s:.1f} s ({failure}). Raise "
        f"its idle timeout above {hold_s:g} s, the longest wait of a poll (nginx: proxy_read_timeout; haproxy: timeout "
        "server). The run continues; the agent logs this once"
    )


def leads_now(server: str) -> str:
    """For a change of the leader among several servers."""
    return f"rdzv-server at {server} is the leader now"


def _limit(longest_s: float, lives: bool = False) -> str:
    if longest_s == inf:
        return ""
    return f" until it has been silent for {longest_s:g} s" if lives else f" for {longest_s:g} s"


# Details of failures.

NO_ANSWER = "no answer"
NO_ADDRESS = "no address"
BROKE = "the connection broke"
CLOSED = "the server closed the connection"
CUT_OFF = "the server closed the connection in the middle of its answer"
OTHER_PROTOCOL = "it changes to another protocol"
OTHER_CODING = "its Transfer-Encoding is not chunked"


def moved(host: str) -> str:
    return f"{host} has a new address"


def name_server_silent(host: str, within_s: float) -> str:
    return f"{host}: the name server does not answer within {within_s:g} s"


def address_silent(address: str, within_s: float) -> str:
    return f"{address}: {server_silent(within_s)}"


def server_silent(within_s: float) -> str:
    """For a connection that could not be made."""
    return f"no answer within {within_s:g} s"


def request_unanswered(for_s: float) -> str:
    return f"no answer for {for_s:g} s"


def answer_too_long(most_bytes: int) -> str:
    return f"the answer has more than {most_bytes} bytes"


def framing_too_long(most_bytes: int) -> str:
    """For endless headers, for example."""
    return f"the answer has more than {most_bytes} bytes around its body"


def answer_invalid(why: str) -> str:
    return f"the answer is not valid HTTP: {why}"


def unsendable(names: str) -> str:
    """For headers, or a path, that would break their line of the request. Their text may be secret."""
    return f"cannot send the request: {names} contains a character that HTTP does not allow there"


def answer_unreadable(why: str) -> str:
    return f"the answer does not come from rdzv-server: {why}"


def proxy_answered(status: int, has_timed_out: bool) -> str:
    limit = ", or allows no more connections" if status == 503 else ""
    why = "rdzv-server did not answer it in time" if has_timed_out else f"it cannot reach rdzv-server{limit}"
    return f"the proxy there answered {status} because {why}"


def other_program_answered(status: int) -> str:
    return f"it answered with HTTP status {status}"


def asks_for_token(at: str, flag: str) -> str:
    """For a server at `at`, and an agent without a token."""
    return f"{at} asks for a token: give {flag} FILE"


def no_longer_leads(server: str) -> str:
    return f"{server} is no longer the leader"


def names_no_interface(address: str) -> str:
    return f"a link-local address needs its interface, as in {address}%eth0"


def own_address_link_local(address: str) -> str:
    return f"workers cannot connect to this node's address {address}, which is link-local: {hint('address')}"
