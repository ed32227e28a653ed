"""Answers to requests that the server refuses, and log lines about connections and requests."""

from collections.abc import Sequence

from rdzv_protocol.text import count

# Refused requests.


def bad_number(name: str, low: int, high: int, text: str) -> str:
    """A query parameter or a header."""
    return f"{name} must be a number from {low} to {high}, not {text[:40]!r}"


def message_too_large(most: int) -> str:
    return f"a message can have at most {most} bytes"


def body_too_large(most: int) -> str:
    return f"this path accepts a body of at most {most} bytes"


def head_too_large(most: int) -> str:
    return f"the request line and all headers together can have at most {most} bytes"


COMPRESSED = "the body must not be compressed: leave out Content-Encoding"
NO_LENGTH = "the body needs a Content-Length: send it without Transfer-Encoding"


def other_media_type(wanted: str) -> str:
    return f"an agent's message must be {wanted}: send it with this Content-Type"


def unreadable_body(error: str) -> str:
    return f"cannot read the body: {error}"


def not_json(example: str) -> str:
    return f"the body is not JSON: give {example}"


METRICS_OF_ALL = "the metrics cover all runs"
INTERNAL_ERROR = "internal error; the server's log has the details"
SPEAKS_TLS = "this server speaks TLS: start the agent with --tls-ca (curl: https://)"
READ_ONLY = (
    "this page is read-only: it shows the run of one node-agent without a server. To act on the run, signal "
    "that agent (Ctrl-C), or start rdzv-server and give the agent --endpoint"
)


def too_many_requests(peer: str) -> str:
    return f"too many requests from {peer}; clients retry them"


def too_many_guesses(peer: str) -> str:
    return f"too many requests from {peer} without the right token: new clients at this address must wait"


def too_many_streams(most: int) -> str:
    return (
        f"{most} event streams are open, the limit: "
        "try again later, or read the events as pages, without Accept: text/event-stream"
    )


# The login of the pages.


def foreign_login(origin: str | None) -> str:
    return f"the web page {origin} may not log users in"


def foreign_logout(origin: str | None) -> str:
    return f"the web page {origin} may not log users out"


UNKNOWN_TOKEN = "This server does not know this token."


# Answers to probes.


def set_apart(run_ids: str) -> str:
    return f"runs set apart: {run_ids}"


def number_set_apart(runs: int) -> str:
    return f"{count(runs, 'run')} set apart: see /v1/status"


def event_errors(runs: int) -> str:
    return f"events of {count(runs, 'run')} missed after an error in the server: see event_errors in /v1/status"


def welcome(looks: Sequence[str]) -> str:
    """Answer to a program that asks for `/`."""
    lines = "\n".join(looks)
    return (
        f"rdzv-server: the rendezvous service for elastic PyTorch runs\n\n{lines}\n\n"
        "Open this address in a browser to see all runs, always up to date.\n\n"
        "Join from each node:  node-agent --endpoint HOST:PORT --nnodes N --nproc M train.py"
    )


# The log.


def refused(peer: str, why: str, others: int) -> str:
    also = f" (and {count(others, 'more refusal')}, for other reasons)" if others else ""
    return f"refused {peer}: {why}{also}"


def request_failed(method: str, path: str) -> str:
    return f"{method} {path} failed"


def answer_failed(method: str, path: str) -> str:
    return f"{method} {path} failed while the server sent the answer"


def cannot_accept(why: str) -> str:
    return f"cannot accept connections ({why})"


ACCEPTS_AGAIN = "accepting connections again"
_OTHERS = "connections with an accepted request continue"


def too_many_of_peer(number: int, peer: str) -> str:
    return f"{number} connections from {peer} without an accepted request; closing the oldest; {_OTHERS}"


def no_room_for_unauthenticated(most: int) -> str:
    return f"{most} connections, the limit of --max-connections; closing unauthenticated ones; {_OTHERS}"


def no_room(most: int) -> str:
    return f"{most} connections, the limit of --max-connections; closing new ones; {_OTHERS}"


def too_many_handshakes() -> str:
    return f"too many TLS connections without a request; closing the oldest; {_OTHERS}"


def too_much_held() -> str:
    return f"too many unfinished requests and unread answers; closing the oldest; {_OTHERS}"
