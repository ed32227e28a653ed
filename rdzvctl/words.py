"""Sentences of `rdzvctl`: each function makes one message to a person from its fields.

The module is imported when the first message is made. A function's name is the kind of the message, and its arguments
are the fields. `tests/golden/messages.txt` shows every message, and `python -m tests.golden --write` makes that file.
"""

from collections.abc import Mapping, Sequence

import rdzv_protocol
from rdzv_protocol import paths
from rdzv_protocol.text import count, span
from rdzv_protocol.words import flags
from rdzv_protocol.words.flags import did_you_mean

# The command line.


def see_help(why: str, program: str) -> str:
    return f"{why} ({program} --help explains it)"


def no_flag(flag: str, known: Sequence[str]) -> str:
    return f"no flag {flag}{did_you_mean(flag, known)}"


def surplus(arguments: Sequence[str]) -> str:
    return f"unrecognized arguments: {' '.join(arguments)}"


def no_command(command: str, known: Sequence[str]) -> str:
    return f"no command {command!r}{did_you_mean(command, known)}"


def not_whole(text: str) -> str:
    return f"expected a whole number, not {text!r}"


def not_within(most: int, text: str) -> str:
    return f"expected a number from 1 to {most}, not {text!r}"


# Contexts, in their file.


def no_context(name: str, path: str, known: Sequence[str]) -> str:
    return f"no context {name!r} in {path}{did_you_mean(name, known)}"


def add_context(name: str, known: Sequence[str]) -> str:
    there = ", ".join(known) or "none"
    return f"known contexts: {there}; add one: rdzvctl config set-context {name} --endpoint HOST:PORT"


def cannot_write(path: str, why: str | None) -> str:
    return f"cannot write {path}: {why}" if why else f"cannot write {path}"


def cannot_read(path: str, why: str) -> str:
    return f"{path}: {why}"


NOT_UTF_8 = "the file is not UTF-8"


def writable_by_others(path: str) -> str:
    return f"{path}: every user of this machine can change this file, and so redirect your token: chmod o-w {path}"


def bad_line(path: str, line: int, why: str) -> str:
    return f"{path}:{line}: {why}"


def unknown_key(key: str, known: Sequence[str]) -> str:
    return f"unknown key {key!r}{did_you_mean(key, known)}"


CURRENT_IS_NO_NAME = "current must be the name of a context, in quotes"
NO_TABLES = "contexts must be tables: [contexts.NAME]"


def of_context(name: str, why: str) -> str:
    return f"context {name}: {why}"


def no_text(key: str) -> str:
    return f"{key} must be a text in quotes, on one line"


def context_without_endpoint(name: str) -> str:
    return f'context {name} has no endpoint: give endpoint = "HOST:{paths.DEFAULT_PORT}"'


def no_current(name: str, known: Sequence[str]) -> str:
    return f"there is no context {name!r}{did_you_mean(name, known)}"


def no_contexts(path: str) -> str:
    return f"No contexts in {path}. Add one: rdzvctl config set-context NAME --endpoint HOST:PORT"


def none_is_current(path: str) -> str:
    return f"no current context in {path}; choose one: rdzvctl config use-context NAME"


def bad_name(name: str) -> str:
    return f"the name of a context must be printable, not {name!r}"


def where_is_server(name: str) -> str:
    return f"context {name} needs the address of its server: give --endpoint HOST:PORT"


def is_current(name: str) -> str:
    return f"{name} is the current context"


def is_set(name: str) -> str:
    return f"context {name} is set"


def is_deleted(name: str) -> str:
    return f"context {name} is deleted"


def written(path: str, done: str, *, comments_lost: bool) -> str:
    return f"{path}: {done}{f'; its comments are now in {path}~' if comments_lost else ''}."


# The server, and how to reach it.


def pair_incomplete(source: str) -> str:
    return f"{flags.belong_together('--tls-cert', '--tls-key')} ({source})"


def no_ca(source: str) -> str:
    return f"--tls-cert needs --tls-ca, too: FILE, or system ({source})"


def context_of(name: str, path: str) -> str:
    """The source of the server's address."""
    return f"context {name} of {path}"


NOTHING_GIVEN = "no --endpoint, RDZV_ENDPOINT or context was given"


def unreadable_token(why: str, source: str) -> str:
    return f"cannot read the token: {why} ({source})"


PUT_TOKEN_THERE = "put the token into that file, or name the file that has it: --token-file FILE"


def bad_tls(why: str, source: str) -> str:
    return f"{why} ({source})"


# Servers that do not answer, or not as expected.


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
    return f"no such host: {why}"


def answer_broken_off(why: str) -> str:
    return f"the answer ended early: {why}"


NONE_LEADS = "no server leads"
DOES_NOT_LEAD = "it does not lead"


def unknown_request(at: str) -> str:
    return (
        f"the rdzv-server at {at} does not know this request: "
        f"run a server of the same build as this rdzvctl, which is version {rdzv_protocol.VERSION}"
    )


def speaks_tls(at: str) -> str:
    return f"{at} speaks TLS: give --tls-ca FILE, or --tls-ca system"


def wrong_token(at: str, token_file: str) -> str:
    return f"{at} does not know the token in {token_file}: ask the server's administrator for the right token"


def asks_for_token(at: str) -> str:
    return f"{at} asks for a token: give --token-file FILE, or set RDZV_TOKEN_FILE"


def kept_out(at: str, why: str) -> str:
    return f"{at}: {why}"


def _tried(failures: Mapping[str, str]) -> str:
    return "; ".join(f"{at}: {why}" for at, why in failures.items())


def no_server_leads(failures: Mapping[str, str]) -> str:
    """`failures`: why none of them leads, by address."""
    return f"no rdzv-server leads: {_tried(failures)}"


WORKERS_RUN = "workers keep running meanwhile; try again, or read the server's log"


def no_server_answers(failures: Mapping[str, str]) -> str:
    return f"no rdzv-server answers: {_tried(failures)}"


def asked_because(source: str) -> str:
    return f"rdzvctl used this address because of: {source}"


NAME_ITS_PORT = f"name rdzv-server's own port, {paths.DEFAULT_PORT} unless it has --port: rdzvctl --endpoint HOST:PORT"
IS_IT_RUNNING = (
    "check that the server is running and reachable from here at this address; rdzvctl --endpoint HOST:PORT asks "
    "another server, and RDZV_ENDPOINT or a context replaces the flag"
)


def unknown_runs(shards: Sequence[int], leader: str | None, why: str) -> str:
    """`shards`: the leader's shards; empty if there is only one shard."""
    which = f"of shard{'s' * (len(shards) > 1)} {', '.join(map(str, shards))} " if shards else ""
    return f"the runs {which}are unknown: {leader or 'no server'}: {why}"


def lacks_field(versions: Mapping[str, str], field: str) -> str:
    """`versions`: versions of the servers that were asked, by address."""
    servers = " and ".join(f"rdzv-server {version} at {at}" for at, version in versions.items())
    return f"{servers or 'the server'} does not send `{field}`, which rdzvctl {rdzv_protocol.VERSION} needs for this"


_SHOWS_ALL = "rdzvctl status --json shows all that it sends"
OTHER_BUILD = f"both have the same version number, but different builds: install both from the same build; {_SHOWS_ALL}"
OTHER_VERSION = f"the server is probably older: upgrade it, or use the rdzvctl of its version; {_SHOWS_ALL}"

# Runs.


def start_one(endpoint: str) -> str:
    return f"start one: node-agent --endpoint {endpoint} ... SCRIPT"


def no_runs(endpoint: str) -> str:
    return f"No runs. Start one: node-agent --endpoint {endpoint} ... SCRIPT"


def none_matches(known: int) -> str:
    """`known`: number of known runs."""
    return f"None of the {known} known runs matches." if known != 1 else "The only known run does not match."


def more_runs(hidden: int, phases: str) -> str:
    """`phases`: numbers of these runs by phase."""
    return f"... and {hidden} more: {phases}. rdzvctl runs lists all runs."


def more_lines(hidden: int) -> str:
    return f"... and {count(hidden, 'more line')}: the screen is too small"


def no_pattern(run_id: str) -> str:
    return f"--phase, --health and --node select from all runs, but {run_id} names one run"


NO_RUN = "there is no run"
NONE_AT_ALL = "there are no runs"
WHICH_RUN = "which run?"


def there_are(names: Sequence[str], more: int) -> str:
    """`more`: number of runs that are not named here."""
    return f"there are {', '.join(names)}{f' and {more} more' if more else ''}"


def unsure_of_run(run_id: str, why: Sequence[str]) -> str:
    return f"cannot tell whether run {run_id} exists: {'; '.join(why)}"


def no_such_run(run_id: str, known: Sequence[str]) -> str:
    return f"no run {run_id}{did_you_mean(run_id, known)}"


def next_step(step: str) -> str:
    return f"Next: {step}"


def over_time(run_id: str, attempt: int, begin: str, end: str, lasted: str) -> str:
    """The heading of a run's timeline."""
    which = f", attempt {attempt}; earlier attempts are not shown" if attempt > 1 else ""
    return f"run {run_id}{which}: {begin} to {end}, {lasted}"


def some_events(shown: int, last: int) -> str:
    return f"the latest {shown} of {last} events; --last 0 shows all that the server keeps"


def log_not_shown(why: str) -> str:
    return f"not shown here: {why}"


CUT = "the file has more lines before these"


def no_rank(run_id: str, rank: int, highest: int | None) -> str:
    """`highest`: the highest rank of the run; None if no worker has been started."""
    known = "no worker has started" if highest is None else f"the highest rank is {highest}"
    return f"no node of run {run_id} has rank {rank}: {known}, or its node is gone"


def next_log(round: int, path: str, node_id: str) -> str:
    return f"round {round}: {path} on node {node_id}"


def stacks(round: int, sentence: str) -> str:
    return f"round {round}: {sentence}"


# Actions.

NOT_DONE = "not done"


def outcome_unknown(why: str) -> str:
    return f"the outcome is unknown: {why}"


def ask_again(request_id: str) -> str:
    return f"to repeat it safely, add --request-id {request_id} to the same command"


def idle(why: str) -> str:
    return f"nothing to do: {why}"


def costs(sentence: str) -> str:
    return f"cost: {sentence}"


def asks(question: str) -> str:
    return f"{question} [y/N]"


def done(target: str, message: str) -> str:
    """`target`: the run or the node, with which the server's message may begin."""
    return message if message.startswith(target) else f"{target}: {message}"


def stays_cordoned(node_id: str, command: str, for_s: float | None) -> str:
    """After a drain. `command`: how to let the node join again."""
    time, earlier = (f" for {span(for_s)}", " earlier") if for_s is not None else ("", "")
    return f"node {node_id} stays cordoned{time}; to let it join again{earlier}: {command}"


def nothing_to_do(action: str, run: str) -> str:
    return f"nothing to {action}: {run}"


def named_run(run_id: str) -> str:
    return f"run {run_id}"


def named_node(node_id: str) -> str:
    return f"node {node_id}"


def node_in_runs(node_id: str, states: Sequence[tuple[str, str]]) -> str:
    """`states`: the node's state in each run, and the run."""
    return f"node {node_id}: {'; '.join(f'{state} in run {run_id}' for state, run_id in states)}"


def no_run_has(node_id: str, known: Sequence[str]) -> str:
    return f"no run has a node {node_id} now{did_you_mean(node_id, known)}"


def in_no_run(node_id: str) -> str:
    return f"node {node_id}: no run has it now"


# Bundles.

FOR_A_BUNDLE = "for a bundle"
ONE_ON_STDOUT = "--json and -o - both write to stdout: give -o FILE"
NO_ARCHIVE_AT_TERMINAL = "a bundle is not text for a terminal: give -o FILE, or redirect stdout"
ENDED_HAS_NO_WORKERS = "the run has ended: it has no workers"
ENDED_HAS_NO_AGENTS = "the run has ended: its agents are gone"


def asking_for(what: str) -> str:
    return f"asking for {what} ..."


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
