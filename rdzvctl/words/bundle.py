"""Messages about bundles, and the text of their README.md."""

from collections.abc import Sequence

import rdzv_protocol
from rdzv_protocol.text import count

FOR_A_BUNDLE = "for a bundle"
ONE_ON_STDOUT = "--json and -o - both write to stdout: give -o FILE"
NO_ARCHIVE_AT_TERMINAL = "a bundle is not text for a terminal: give -o FILE, or redirect stdout"
ENDED_HAS_NO_WORKERS = "the run has ended: it has no workers"
ENDED_HAS_NO_AGENTS = "the run has ended: its agents are gone"


def asking_for(what: str) -> str:
    return f"asking for {what} ..."


def stream_of_rank(streams: Sequence[str], rank: int) -> str:
    return f"{' and '.join(streams)} of rank {rank}"


def agent_of_node(node_id: str) -> str:
    return f"agent of node {node_id}"


def missing_log(why: str, place: str) -> str:
    """`place`: where the log is; empty if it is unknown."""
    return f"{why}{place and f' ({place})'}"


def file_exists(path: str) -> str:
    return f"{path} exists: give another -o FILE, or remove it"


def events_dropped(number: int) -> str:
    return f"the server has dropped the {count(number, 'oldest event')}"


def more_agents(number: int) -> str:
    return f"agents of {count(number, 'more node')}"


def asks_at_most(number: int) -> str:
    return f"a bundle asks at most {count(number, 'agent')}"


def bundle_written(path: str, files: int, size: int, missing: int) -> str:
    where = "the bundle" if path == "-" else path
    lacks = f"; {count(missing, 'part')} missing: README.md gives the reasons" if missing else ""
    return f"{where}: {count(files, 'file')}, {size / 1000:.0f} kB{lacks}. Read it before you send it."


_IN_BUNDLE = {
    "report.txt": "Start here: the state of the run and its reason, its nodes and its restarts.",
    "evidence.txt": "Each failure that the server remembers, with its traceback or the end of its output.",
    "stacks.json": "The stacks of the workers when the bundle was made, as the server sent them.",
    "stacks.txt": "The same as text: one sentence, and the stack that matters.",
    "logs/": "The last lines of the logs of rank 0 and of failed ranks: at most 1,000 lines of each stream.",
    "agents/": "Versions, machine and environment of agents. Only variables of torch and its libraries have values.",
    "events.jsonl": "The events of the run, one event per line: see docs/reference/events.md.",
    "events.txt": "The same as text. Times are local times of the machine on which the bundle was made.",
    "metrics.txt": "The metrics of the server and of this run.",
    "status.json": "The run as `rdzvctl status RUN --json` shows it.",
    "settings.json": "The run's settings.",
    "servers.json": "The servers, the leader among them, and cordoned nodes.",
    "versions.json": "Versions of the programs, and names of the environment variables of `rdzvctl`, without values.",
}
"""Files of a bundle, and what each of them is."""


def bundle_readme(
    run_id: str, at: str, files: Sequence[str], missing: Sequence[tuple[str, str]], *, is_anonymous: bool
) -> str:
    """Return the README.md of a bundle. `missing`: parts that it lacks, each with the reason."""
    there = [name for name in _IN_BUNDLE if any(each.startswith(name) for each in files)]
    rows = [f"| `{name}` | {_IN_BUNDLE[name]} |" for name in there]
    reasons = dict[str, list[str]]()
    for what, why in missing:
        if what not in reasons.setdefault(why, []):
            reasons[why].append(what)
    lacks = [f"- {', '.join(each)}: {why}" for why, each in reasons.items()]
    names = _ANONYMOUS if is_anonymous else _NAMED
    return "\n".join((
        f"# Bundle of run {run_id}", "", f"`rdzvctl bundle` {rdzv_protocol.VERSION} made this bundle at {at}.", "",
        "| file | what it is |", "|---|---|", *rows, "", "## What is missing", "", *(lacks or ["Nothing."]), "",
        "## What was taken out", "", _REDACTED, "", names,
    ))  # fmt: skip


_REDACTED = """\
`[redacted]` replaces the values of most environment variables, and everything that looks like a secret: values of names
such as token, password or key, bearer tokens, private keys, passwords in URLs, and long random texts.
`rdzvctl` cannot find a secret that looks like an ordinary word: read the files before you send them."""
_ANONYMOUS = """\
Names of runs, nodes, hosts, users, addresses and paths are replaced, each name by the same one in all files.
Names of one or two characters are replaced only in fields of their own and after "node" or "run".
Files of installed packages keep their names. All other text that a script wrote is unchanged."""
_NAMED = "Names are unchanged. `rdzvctl bundle --anonymize` replaces them."
