"""Paths to which messages are sent. A path contains the version: a `/v2` may exist beside a `/v1`.

Ids travel in the body, so that a run id cannot be mistaken for a path. The id in `EVENTS` is percent-encoded:
everything between the path's beginning and its end is the id.
"""

API = "/v1/"
AGENT = "/v1/agent/"

JOIN = "/v1/agent/join"
POLL = "/v1/agent/poll"
REPORT = "/v1/agent/report"
SUSPECT = "/v1/agent/suspect"
LEAVE = "/v1/agent/leave"
ANSWER = "/v1/agent/answer"
LEADER = "/v1/agent/leader"

ROOT = "/"
STATUS = "/v1/status"
WATCH = "/v1/watch"
RUNS = "/v1/runs/"
NODES = "/v1/nodes/"
"""Prefixes of the paths of actions, which end with the actions' names: see `actions`."""
COSTS = "/v1/costs"
FIND_NODES = "/v1/nodes"
NODE_COSTS = "/v1/nodes/costs"
LOGS = "/v1/runs/logs"
STACKS = "/v1/runs/stacks"
DESCRIBE = "/v1/runs/describe"
EVENTS = "/v1/runs/{run_id}/events"
"""Template of the path of a run's events: see `template_of` and `events_of`."""
TIMELINE = "/v1/runs/{run_id}/timeline"
"""Template of the path of a run's timeline."""
HEALTHZ = "/healthz"
READYZ = "/readyz"
LEADERZ = "/leaderz"
OPENAPI = "/openapi.json"
METRICS = "/metrics"
AGENT_HAS_METRICS_ONLY = "a node-agent's --metrics-port has only GET /metrics"
"""Body of an agent's answer 404."""
LOGIN = "/login"
LOGOUT = "/logout"
STATIC = "/static/"
RUN_PAGE = "/runs/"
"""Prefix of the path of a run's page; the run id follows, percent-encoded."""
NODE_PAGE = "/nodes/"
"""Prefix of the path of a node's page; the node's name follows, percent-encoded."""

MEDIA_TYPE = "application/msgpack"
STREAM_TYPE = "text/event-stream"
"""Media type of streams of events."""
DEFAULT_PORT = 29400


_begin, _ = EVENTS.split("{run_id}")
_ends = {template.removeprefix(_begin + "{run_id}"): template for template in (EVENTS, TIMELINE)}


def template_of(path: str) -> str:
    """Return the path with `{run_id}` in place of a run's id, if it has one."""
    return _parsed(path)[0]


def run_id_of(path: str) -> str | None:
    """Return the run id in a decoded path; None if it has none."""
    return _parsed(path)[1]


def _parsed(path: str) -> tuple[str, str | None]:
    if path.startswith(_begin):
        for end, template in _ends.items():
            if path.endswith(end) and (run_id := path[len(_begin) : -len(end)]):
                return template, run_id
    return path, None


def events_of(run_id: str) -> str:
    """Return the path of a run's events."""
    from urllib.parse import quote

    return EVENTS.format(run_id=quote(run_id, safe=""))


def timeline_of(run_id: str) -> str:
    """Return the path of a run's timeline."""
    return f"{events_of(run_id).removesuffix('events')}timeline"
