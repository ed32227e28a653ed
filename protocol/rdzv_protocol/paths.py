"""Paths to which messages are sent. The version stands in the path: a `/v2` may live beside a `/v1`.

Ids travel in the body, never in the path, so that no run id can be taken for a path.
"""

API = "/v1/"
AGENT = "/v1/agent/"

JOIN = "/v1/agent/join"
POLL = "/v1/agent/poll"
REPORT = "/v1/agent/report"
LEAVE = "/v1/agent/leave"
LEADER = "/v1/agent/leader"

ROOT = "/"
STATUS = "/v1/status"
WATCH = "/v1/watch"
STOP = "/v1/runs/stop"
ADMIT = "/v1/runs/admit"
RESTART = "/v1/runs/restart"
RESIZE = "/v1/runs/resize"
FORGET = "/v1/runs/forget"
DRAIN = "/v1/nodes/drain"
CORDON = "/v1/nodes/cordon"
UNCORDON = "/v1/nodes/uncordon"
HEALTHZ = "/healthz"
READYZ = "/readyz"
LEADERZ = "/leaderz"
OPENAPI = "/openapi.json"
METRICS = "/metrics"
LOGIN = "/login"
LOGOUT = "/logout"
STATIC = "/static/"
RUN_PAGE = "/runs/"
"""Followed by a run id, percent-encoded."""

MEDIA_TYPE = "application/msgpack"
DEFAULT_PORT = 29400
