"""Fields of the messages about an agent's connection. One stage is enough if the hint is another message."""

from math import inf
from typing import get_args

from node_agent.words import connection
from tests.golden.examples import Examples

_FAILED = {"server": "<server>", "failure": "<failure>"}
EXAMPLES: Examples = {
    connection.hint: [{"stage": each} for each in get_args(connection.Stage) if each != "TLS"],
    connection.not_reached_yet: [_FAILED | {"longest_s": each, "stage": "connect"} for each in (300.0, inf)],
    connection.server_lost: [
        _FAILED | {"has_workers": each, "longest_s": longest_s, "lives": lives}
        for each, longest_s, lives in ((True, inf, False), (False, 300.0, False), (False, 300.0, True))
    ],
    connection.still_no_server: [_FAILED | {"longest_s": 300.0, "lives": each} for each in (False, True)],
    connection.server_given_up: [_FAILED | {"within_s": 300.0, "stage": "connect"}],
    connection.server_unusable: [_FAILED | {"stage": "TLS"}],
    connection.success_not_delivered: [
        _FAILED | {"longest_s": longest_s, "lives": lives}
        for longest_s, lives in ((300.0, False), (300.0, True), (inf, False))
    ],
    connection.proxy_answered: [{"status": status, "has_timed_out": status == 504} for status in (502, 503, 504)],
}
