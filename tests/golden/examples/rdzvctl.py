"""Examples of the messages of `rdzvctl`."""

from rdzvctl import words
from tests.golden.examples import Examples

_KNOWN = ("lab", "site")
_TRIED = {"failures": {"gpu1:29400": "connection refused", "gpu2:29400": "no answer in time"}}

EXAMPLES: Examples = {
    words.command_line.no_flag: [{"flag": "--endpiont", "known": ["--endpoint"]}],
    words.command_line.surplus: [{"arguments": ["other", "runs"]}],
    words.command_line.no_command: [{"command": "stauts", "known": ["status"]}],
    words.contexts.no_context: [{"name": "lap", "path": "<path>", "known": _KNOWN}],
    words.contexts.add_context: [{"name": "lap", "known": known} for known in (_KNOWN, ())],
    words.contexts.unknown_key: [{"key": "curent", "known": ("current", "contexts")}],
    words.contexts.no_current: [{"name": "lap", "known": _KNOWN}],
    words.contexts.cannot_write: [{"path": "<path>", "why": "Permission denied"}],
    words.connection.no_host: [{"why": "Temporary failure"}],
    words.connection.no_server_leads: [_TRIED],
    words.connection.no_server_answers: [_TRIED],
    words.connection.unknown_runs: [
        {"shards": (), "leader": None, "why": "none leads"},
        {"shards": (2, 3), "leader": "gpu1:29400", "why": "no answer in time"},
    ],
    words.connection.lacks_field: [
        {"versions": versions, "field": "phase"} for versions in ({}, {"gpu1:29400": "0.0.7"})
    ],
    words.runs.there_are: [{"names": ("r1", "r2"), "more": more} for more in (0, 3)],
    words.runs.no_such_run: [{"run_id": "trianing", "known": ("training",)}, {"run_id": "r1", "known": ()}],
    words.actions.done: [
        {"target": "run r1", "message": message} for message in ("run r1 is stopped", "it succeeded before")
    ],
    words.actions.node_in_runs: [{"node_id": "gpu1", "states": (("running", "r1"), ("waiting", "r2"))}],
    words.bundle.bundle_written: [
        {"path": path, "files": 12, "size": 34_567, "missing": 1} for path in ("r1.tar.gz", "-")
    ],
    words.bundle.bundle_readme: [
        {
            "run_id": "r1",
            "at": "2026-01-02 03:04:05 +0000",
            "files": ("report.txt", "logs/rank_0.stderr.txt"),
            "missing": (("stacks", "the run has ended"), ("stderr of rank 3", "refused")),
            "is_anonymous": True,
        },
        {"run_id": "r1", "at": "2026-01-02 03:04:05 +0000", "files": (), "missing": (), "is_anonymous": False},
    ],
    words.actions.no_run_has: [{"node_id": "gpu", "known": ("gpu1",)}],
}
