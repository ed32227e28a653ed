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
    words.connection.cannot_now: [{"failures": {"gpu1:29400": "the disk is full"}}],
    words.connection.answer_too_large: [{"most": 1 << 30}],
    words.connection.no_server_answers: [_TRIED],
    words.connection.unknown_runs: [
        {"shards": (), "leader": None, "why": "none leads", "are_shown": False},
        {"shards": (), "leader": "gpu1:29400", "why": "it does not lead", "are_shown": True},
        {"shards": (2, 3), "leader": "gpu1:29400", "why": "no answer in time", "are_shown": False},
    ],
    words.connection.lacks_field: [
        {"versions": versions, "field": "phase"} for versions in ({}, {"gpu1:29400": "0.0.7"})
    ],
    words.runs.known_runs: [{"names": ("r1", "r2"), "more": more} for more in (0, 3)],
    words.logs.needs_rank: [{"run_id": "r1"}],
    words.logs.ranks: [{"run_id": "r1", "highest": highest} for highest in (None, 0, 7)],
    words.command_line.asks_nothing: [{"flag": "--yes", "program": "rdzvctl cordon"}],
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
    words.explanation.disconnected: [{"node_id": "gpu1", "unheard_s": 2.0, "left_s": 3.0}],
    words.explanation.more_disconnected: [{"number": number} for number in (1, 3)],
    words.explanation.more: [
        {"number": 1, "noun": "remark", "command": "rdzvctl nodes"},
        {"number": 3, "noun": "broken link", "command": "rdzvctl status --json"},
    ],
    words.explanation.rounds_have_failed: [{"rounds": 2, "last": last} for last in ("", "<last>")],
    words.explanation.has_restarted: [
        {
            "causes": {"worker failure": 2, "node lost": 1},
            "used": 2,
            "max_restarts": 3,
            "own_budgets": {"hang": (0, 1)},
        },
        {"causes": {"operator": 1}, "used": 0, "max_restarts": 0, "own_budgets": {}},
    ],
    words.explanation.time_went_into: [
        {"spent_s": {"training": 7_500.0, "lost": 61.0}, "ettr": 0.9585},
        {"spent_s": {"running": 12.0, "forming": 3.0}, "ettr": None},
    ],
    words.events.event: [
        {"at": "2026-01-02 03:04:05", "number": 7, "attempt": attempt, "round": 3, "sentence": "<sentence>"}
        for attempt in (1, 2)
    ],
    words.events.of_unknown_kind: [{"kind": "of_next_year", "reason": "<reason>", "by": by} for by in ("", "admin")],
    words.events.mark: [
        {"kind": "worker failed", "times": 1, "until": ""},
        {"kind": "agent silent", "times": 3, "until": "03:04:05"},
    ],
    words.bundle.stream_of_rank: [{"streams": streams, "rank": 3} for streams in (["stderr"], ["stdout", "stderr"])],
    words.bundle.missing_log: [{"why": "<why>", "place": place} for place in ("", "<place>")],
    words.nodes.listed: [{"names": ("gpu1", "gpu2"), "more": more} for more in (0, 3)],
    words.nodes.ranks: [{"first": 2, "last": last} for last in (2, 5)],
    words.runs.by_phase: [{"numbers": {"running": 180, "failed": 6}}],
    words.runs.named: [{"run_id": "r1", "attempt": attempt} for attempt in (1, 2)],
    words.runs.trouble: [
        {"health": "slow", "since_s": 61.0, "sentence": "<sentence>", "others": others}
        for others in ((), ("last restart spent",))
    ],
    words.runs.one_line: [{"run_id": "r1", "state": "<state>", "trouble": trouble} for trouble in ("", "<trouble>")],
    words.runs.node_counts: [
        {"present": 2, "standbys": 0, "low": 2, "high": 2},
        {"present": 3, "standbys": 1, "low": 2, "high": 4},
    ],
    words.runs.needs_nothing: [
        {"well": 1, "ended": {}, "named_failed": 0, "are_all_well": False},
        {"well": 2, "ended": {"succeeded": 1, "failed": 3}, "named_failed": 0, "are_all_well": False},
        {"well": 2, "ended": {"succeeded": 1, "failed": 3, "stopped": 2}, "named_failed": 4, "are_all_well": True},
        {"well": 2, "ended": {}, "named_failed": 0, "are_all_well": True},
    ],
    words.servers.server: [
        {"version": "1.0.0", "address": "gpu1:29400", "state": "ready", "role": role, "uptime_s": 7_500.0}
        for role in ("", "leads")
    ],
    words.servers.leads_shards: [{"shards": shards} for shards in ((), (0, 2))],
    words.servers.cordon: [
        {"by": "admin", "until": "", "reason": "", "excluded": False},
        {
            "by": "admin",
            "since": "2026-01-01 12:00",
            "until": "2026-01-02 03:04",
            "reason": "ECC errors",
            "excluded": False,
        },
        {"by": "rdzv-server", "until": "", "reason": "blamed 3 times within 1 d", "excluded": True},
    ],
    **{each: [{"run_id": "r 1"}] for each in (words.steps.untold, words.steps.admit)},
    words.steps.agent: [{"run_id": "r 1", "endpoint": "gpu1:29400"}],
    words.steps.wait_for: [{"nodes": "gpu1", "number": 1}, {"nodes": "gpu1, gpu2", "number": 2}],
    words.steps.uncordon_absent: [{"node_id": "gpu1", "cordon": "<cordon>"}],
    words.steps.uncordon: [{"node_id": "gpu1", "cordon": cordon} for cordon in ("", "<cordon>")],
}
