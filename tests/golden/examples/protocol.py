"""Examples of messages that several programs share."""

from rdzv_protocol.words import codec, flags, run

from tests.golden.examples import Examples

PARTS = (
    "detecting",
    "stopping",
    "waiting",
    "forming",
    "spawning",
    "importing",
    "initializing",
    "loading",
    "first_step",
)
KNOWN = {f"{part}_s": seconds for seconds, part in enumerate(PARTS, start=1)}

EXAMPLES: Examples = {
    run.read_output: [{"run_id": "r1", "rank": 3}],
    codec.a_text: [{"least": 1, "most": 256, "is_visible": is_visible} for is_visible in (True, False)],
    codec.an_integer: [{"low": 1, "high": 65_535}],
    codec.a_number: [{"low": 0.1, "high": 86_400}],
    codec.one_of: [{"values": ["wait", "start"]}],
    codec.a_long_text: [{"text": "x" * 100}],
    flags.did_you_mean: [{"given": "--prot", "known": ["--port", "--host"]}],
    flags.other_setting: [
        {"flag": "--max-restarts", "theirs": 3, "asked": 0},
        {"flag": "--last-call-timeout", "theirs": None, "asked": 30.0},
        {"flag": "--fail-when-hopeless", "theirs": True, "asked": False},
        {"flag": "--fatal-exit-codes", "theirs": (), "asked": (3, 4)},
    ],
    flags.needs_shtab: [{"program": "node-agent", "flag": "--print-completion"}],
    run.restarts_took: [
        {"restarts": 1, "followed": 1, "seconds": KNOWN},
        {"restarts": 3, "followed": 2, "seconds": KNOWN | {"importing_s": None, "initializing_s": None}},
        {"restarts": 1, "followed": 1, "seconds": KNOWN, "kept_steps": 15, "repeated_steps": 1},
        {"restarts": 1, "followed": 1, "seconds": KNOWN, "repeated_steps": 1},
        {
            "restarts": 2,
            "followed": 0,
            "seconds": dict.fromkeys(KNOWN)
            | {"detecting_s": 0.0, "stopping_s": 0.1, "waiting_s": 0.0, "forming_s": 0.4},
        },
    ],
    run.last_restart_took: [
        {"round": 4, "seconds": KNOWN},
        {"round": 4, "seconds": KNOWN | {"importing_s": None, "initializing_s": None}},
        {"round": 2, "seconds": dict.fromkeys(KNOWN) | {"detecting_s": 0.0, "stopping_s": 0.1}},
        {"round": 2, "seconds": dict.fromkeys(KNOWN, 0.0)},
    ],
    run.started: [{"nodes": nodes, "reason": "<reason>"} for nodes in (1, 2)],
}
