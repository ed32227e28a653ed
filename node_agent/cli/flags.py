"""Every flag of `node-agent`, in the order of --help. What reads, checks and tests flags goes by this table.

A flag's first name is torchrun's where torchrun has the flag; names that follow are ours. Each `--a-b` may be written
`--a_b`, and falls back to the variable `PET_A_B`.
"""

from typing import Any, NamedTuple

from node_agent.cli.values import (
    PLACES,
    Read,
    codes,
    filters,
    modules,
    name,
    nnodes,
    one_of,
    ranks,
    role_name,
    seconds,
    signals,
    streams,
    switch,
    template,
    text,
    whole,
)
from node_agent.config import SIGNALS

BACKENDS = ("c10d", "static", "etcd", "etcd-v2", "rdzv-server")
"""torchrun's, and the name of our plug-in for torchrun. All of them are served by rdzv-server."""


class Flag(NamedTuple):
    """One flag. Its value is None, or False for a switch, where nobody gives one and there is no `default`."""

    names: tuple[str, ...]
    metavar: str
    """What follows it, for people; empty: nothing, it is a switch."""
    read: Read
    help: str
    default: Any = None
    ours: bool = False
    """torchrun has no such flag."""
    variable: str = ""
    """Another variable to fall back to, of torch's."""

    @property
    def dest(self) -> str:
        return _word(next(each for each in self.names if each.startswith("--")))

    @property
    def variables(self) -> list[str]:
        """What it falls back to, in this order."""
        pet = [f"PET_{_word(each).upper()}" for each in self.names if each.startswith("--")]
        return [*pet, self.variable] if self.variable else pet

    @property
    def spellings(self) -> list[str]:
        """Each name with dashes and with underscores."""
        return list(dict.fromkeys(name for each in self.names for name in (each, _with_underscores(each))))

    @property
    def torchruns(self) -> list[str]:
        """The spellings that torchrun has, too."""
        if self.ours:
            return []
        own = [each for each in self.names if not each.startswith("--")] + ["--" + self.dest.replace("_", "-")]
        return [each for name in own for each in (name, _with_underscores(name))]


def _word(spelling: str) -> str:
    return spelling.removeprefix("--").replace("-", "_")


def _with_underscores(spelling: str) -> str:
    return "--" + _word(spelling) if spelling.startswith("--") else spelling


def _flag(names: str, metavar: str, read: Read, help: str, default: Any = None, *, variable: str = "") -> Flag:
    return Flag(tuple(names.split()), metavar, read, help, default, variable=variable)


def _own(names: str, metavar: str, read: Read, help: str, default: Any = None) -> Flag:
    return Flag(tuple(names.split()), metavar, read, help, default, ours=True)


def _switch(names: str, help: str) -> Flag:
    return Flag(tuple(names.split()), "", switch, help, False)


GROUPS: dict[str, list[Flag]] = {
    "where the nodes of the run meet": [
        _flag("--rdzv-endpoint --endpoint", "HOST:PORT", text, "--endpoint: where rdzv-server listens; "
              "HOST:PORT,HOST:PORT,HOST:PORT for several servers, of which one leads. --rdzv-endpoint: as in torchrun, "
              "the place where --rdzv-backend hosts or finds a server"),
        _switch("--standalone", "this node alone, with a server in the agent; so it is, too, if you name neither an "
                "endpoint nor several nodes"),
        _flag("--rdzv-backend", "NAME", one_of(*BACKENDS), "as in torchrun's command lines; every one is served by "
              "rdzv-server. c10d: the node that the endpoint names hosts it, unless something listens there already. "
              "static: rank 0 hosts it at --master-addr, --master-port. etcd, etcd-v2, rdzv-server: one that runs at "
              "the endpoint (default: rdzv-server with --endpoint, else static)"),
        _flag("--master-addr", "ADDR", name, "node of rank 0, with --rdzv-backend static (default: 127.0.0.1)"),
        _flag("--master-port", "PORT", whole(1, 65_535), "port there (default: 29500). With one node: the workers' "
              "MASTER_PORT"),
        _flag("--rdzv-id --run-id", "ID", name, "names the run; agents with one id are one run (default: none)"),
        _flag("--nnodes", "N|MIN:MAX", nnodes, "nodes of the run (default: the run's, or 1)"),
        _flag("--rdzv-conf", "K=V,K=V", text, "torchrun's settings: join_timeout, last_call_timeout, close_timeout, "
              "keep_alive_interval, keep_alive_max_attempt, timeout, read_timeout, is_host"),
        _own("--connect-timeout", "S", seconds(), "how long the server's first answer may take; it may start after the "
             "agents (default: 300)"),
        _own("--server-lost-timeout", "S", seconds(), "how long to go on without a server that is gone (default: for "
             "ever while workers run, and without any as long as --connect-timeout; always that long with c10d and "
             "static, where a node of the run hosts it)"),
    ],
    "security": [
        _own("--token-file", "FILE", text, "bear the token in this file, as rdzv-server asks; read again when the "
             "server does not know it any more"),
        _own("--tls-ca", "FILE|system", text, "speak TLS to rdzv-server, whose certificate one of these authorities "
             "(PEM), or of those that the system trusts, must vouch for"),
        _own("--tls-cert", "FILE", text, "show this certificate (PEM), as rdzv-server --tls-client-ca asks"),
        _own("--tls-key", "FILE", text, "its key (PEM, not encrypted)"),
        _own("--no-status-page", "", switch, "no page on this machine's loopback that shows the run's status, with "
             "--standalone; every user of the machine could look at it", False),
    ],
    "this node": [
        _flag("--nproc-per-node --nproc", "N", whole(1, 4096, PLACES), "workers on this node, or one for each of its "
              "CPUs (cpu), GPUs (gpu) or XPUs (xpu); auto: GPUs, else XPUs, else CPUs (default: 1)", 1),
        _own("--node-id", "NAME", name, "this node's name (default: the host name)"),
        _flag("--node-rank", "R", whole(0, 10**7), "ask for this group rank (with static default: 0)"),
        _flag("--local-addr", "ADDR", text, "where other nodes reach this one (default: the address from which it "
              "reaches the server)"),
        _flag("--role", "NAME", role_name, "name of the workers' role (default: default)", "default"),
        _switch("--virtual-local-rank", "each worker has LOCAL_RANK 0 and sees its own GPU alone, as device 0"),
        _flag("--numa-binding", "HOW", one_of("node", "socket", "exclusive", "core-complex"), "keep each worker on the "
              "CPUs near its GPU: node, socket, exclusive or core-complex"),
        _flag("--shutdown-timeout", "S", seconds(), "time that workers get between SIGTERM and SIGKILL, also for a "
              "restart (default: 30)", 30.0, variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
        _flag("--signals-to-handle", "NAME,NAME", signals, "signals that make the agent leave; its workers get the "
              f"same (default: {','.join(SIGNALS)})", SIGNALS),
    ],
    "failures and membership, for the whole run": [
        _flag("--max-restarts", "N", whole(0, 10**7), "restarts after worker failures; membership changes are free "
              "(default: 0)"),
        _own("--fatal-exit-codes", "N,N", codes, "exit codes that fail the run at once"),
        _own("--join-timeout", "S", seconds(), "wait for MIN nodes (default: 600)"),
        _own("--last-call-timeout", "S", seconds(), "wait for more after MIN (default: 30)"),
        _own("--lease", "S", seconds(0.1, 86_400), "silence after which a node is lost (default: 10)"),
        _own("--disconnect-grace", "S", seconds(), "time to come back after the connection closed (default: 1)"),
        _own("--scale-up", "WHEN", one_of("immediate", "cooldown", "manual"), "when an arrival restarts the run: "
             "immediate, cooldown or manual (default: immediate)"),
        Flag(("--rerun",), "", switch, "begin again a run that has already succeeded", False, ours=True),
    ],
    "output": [
        _flag("--log-dir", "DIR", text, "where log files go: DIR/<run id>_<random>/attempt_<n>/<local rank>/ (default: "
              "a temporary folder; /dev/null: no files)"),
        _flag("-r --redirects", "WHAT", streams, "streams that go to a file instead of the console: 0 none, 1 stdout, "
              "2 stderr, 3 both, or a map from local ranks, such as 0:1,1:3 (default: 0)"),
        _flag("-t --tee", "WHAT", streams, "streams that go to a file and to the console, likewise (default: 0)"),
        _flag("--local-ranks-filter", "R,R", ranks, "show the output of these local ranks alone; files hold all"),
        _own("--ranks-filter", "R,R", ranks, "show the output of these ranks alone"),
        _flag("--duplicate-stdout-filters", "TEXT,TEXT", filters, "lines with one of these texts go to "
              "filtered_stdout.log, too; a double comma stands for a comma", ()),
        _flag("--duplicate-stderr-filters", "TEXT,TEXT", filters, "the same for stderr", ()),
        _own("--log-prefix", "TEMPLATE", template, "what every line on the console begins with, such as "
             "'[${role_name}${rank}]: '. TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE marks teed lines alone"),
        _flag("--logs-specs", "NAME", text, "a torchrun.logs_specs entry point that decides about files instead"),
        _flag("--event-log-handler", "NAME", one_of("null", "console"), "torchrun's events: null or console", "null"),
    ],
    "what the workers execute": [
        _switch("-m --module", "SCRIPT is a module, as with python -m"),
        _switch("--no-python", "SCRIPT is a program, not a Python script"),
        _switch("--run-path", "run SCRIPT with runpy.run_path, as __main__; before --no-python"),
        _own("--preload", "MODULE,MODULE", modules, "import these once, and fork workers that have them: a restart "
             "then takes no import. For Python scripts; not for modules that start threads or open a GPU when they are "
             "imported", ()),
        _switch("--use-env", "pass no --local-rank to the script: always so, but for python -m node_agent.launch"),
    ],
    "accepted, for torchrun's command lines": [
        _flag("--monitor-interval", "S", seconds(), "nothing is polled here: a worker's end is noticed at once"),
        _flag("--start-method", "HOW", one_of("spawn", "fork", "forkserver"), "workers are programs of their own"),
    ],
}  # fmt: skip

FLAGS: dict[str, Flag] = {flag.dest: flag for group in GROUPS.values() for flag in group}
"""By the name of the value."""
