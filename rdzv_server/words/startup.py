"""Messages of `rdzv-server` about its command line, at its start and at its end."""

from collections.abc import Sequence

from rdzv_protocol.text import count
from rdzv_protocol.words import flags

# Values of flags.


def whole_number(low: int, high: int) -> str:
    return f"a number from {low} to {high}"


A_DESCRIPTOR = "the number of a file descriptor"
A_LEASE = "a whole number of seconds from 1 to 3600"
A_PORT = "a port from 0 to 65535"
A_NUMBER_OF_SECONDS = "a number of seconds, at least 0"
A_SPAN = f"{flags.A_TIME}, from 1s to 366d"


def flag_of_agent(flag: str) -> str:
    return f"{flag} is a flag of node-agent: give it to the command that starts the workers"


def other_value(wanted: str, text: str) -> str:
    return f"expected {wanted}, not {text!r}"


def no_window(text: str) -> str:
    return other_value("N/TIME, a number of times within a time, as in 3/24h", text)


def bad_window(most: int, text: str) -> str:
    return other_value(f"a number from 1 to {most}, and {flags.A_TIME}, as in 3/24h", text)


# Flags that do not go together.


def see_help(why: str) -> str:
    return f"{why} (rdzv-server --help-all explains every flag)"


def only_in_cluster(flag: str) -> str:
    return f"{flag} works only with several servers: give --store etcd://HOST,HOST,HOST"


NEVER_IDLE = "--exit-when-idle does not work with --store etcd://, where several servers stand by for any run"


NEVER_STANDS_BY = "--stand-by-for does not work with --store etcd://, where servers elect their leader"


def needs_stand_by_for(flag: str) -> str:
    return f"{flag} needs --stand-by-for HOST:PORT: without it, the server serves at once"


def needs_exclude_after(flag: str) -> str:
    return f"{flag} needs --exclude-after N/TIME: without it, the server excludes no node"


def not_executable(program: str) -> str:
    return f"--on-exclude: {program} is not an executable program: check the path, and chmod +x it"


def needs_certificate(flag: str) -> str:
    return f"{flag} needs --tls-cert and --tls-key, too"


def needs_token_file(flag: str) -> str:
    return f"{flag} needs --token-file, too: without it, no agent could join"


def no_otel(why: str) -> str:
    return f"--otel {why}"


def needs_aetcd(why: str) -> str:
    return f"--store etcd:// needs aetcd ({why}): pip install '.[etcd]' in a checkout of rdzv-server"


# Sockets and files.


def too_many_sockets(passed: int) -> str:
    return f"the service manager passed {passed} sockets (LISTEN_FDS) instead of one: give only one ListenStream="


def no_passed_socket(descriptor: int, why: str | None) -> str:
    return f"cannot use descriptor {descriptor} of the service manager (LISTEN_FDS): {why}"


NOT_LISTENING = "the socket does not listen"
PASSED_NO_LISTENER = (
    "the service manager did not pass a listening TCP socket: give ListenStream=PORT, without Accept=yes"
)


def bad_listen_fd(descriptor: int, why: str) -> str:
    return f"--listen-fd {descriptor}: {why}"


def port_in_use(port: int) -> str:
    return (
        f"port {port} is in use on this machine: stop the program that uses it, or choose another port with --port (0: "
        "a free port)"
    )


def port_needs_privileges(port: int) -> str:
    return f"port {port} needs privileges: choose one above 1023 with --port"


def cannot_listen(host: str | None, port: int, why: str) -> str:
    named = f"; name an address of this machine with --host, not {host}, or leave --host out" if host else ""
    return f"cannot listen on {host or 'every address'}, port {port}: {why}{named}"


def too_few_files(most: int) -> str:
    return f"this process may open only {most} files, too few to serve: raise the limit (ulimit -Hn, LimitNOFILE=)"


def too_few_files_for(connections: int, most: int, others: int) -> str:
    """`others`: number of files besides the connections."""
    return (
        f"--max-connections {connections}: this process may open {most} files, and needs {others} for other purposes; "
        "raise the hard limit (ulimit -Hn, LimitNOFILE=)"
    )


def few_connections(connections: int, most_files: int | None) -> str:
    """`most_files`: the limit of open files if that is the reason, or None if the flag is."""
    limit = f"the limit of {most_files} open files (ulimit -Hn, LimitNOFILE=)" if most_files else "--max-connections"
    return f"there is room for only {connections} connections, and an agent uses two: for more agents, raise {limit}"


def nothing_answers(host: str, port: int, why: str) -> str:
    """`--probe`."""
    return f"rdzv-server: no server answers at {host}, port {port}: {why}"


def wrong_aiohttp(version: str, first: str, before: str) -> str:
    return (
        f"aiohttp {version} is installed, but rdzv-server needs another version: pip install "
        f"'aiohttp>={first},<{before}'"
    )


# `--stand-by-for`


def stands_by(servers: Sequence[str]) -> str:
    return f"standing by for {', '.join(servers)}"


def serves(server: str) -> str:
    return f"{server} serves; this server takes over when {server} is gone"


def takes_over(servers: Sequence[str]) -> str:
    return f"{', '.join(servers)}: no answer; taking over; agents form their runs again here"


def steps_back(server: str) -> str:
    return f"{server} answers again; agents form their runs again there"


# Start and end.


def listens_at(url: str) -> str:
    return f"listening on {url} (open it in a browser to see all runs)"


def listens_everywhere(port: int, url: str) -> str:
    return f"listening on port {port} of every address (open {url} in a browser to see all runs)"


def state_in(place: str, runs: int) -> str:
    """`runs`: number of runs that have not ended."""
    return f"state in {place}" + (f"; continuing with {count(runs, 'run')}" if runs else "")


def etcd_place(members: Sequence[str], prefix: str, address: str) -> str:
    return f"etcd ({', '.join(members)}) below {prefix}; agents reach this server at {address}"


def status(runs: int) -> str:
    """The server's state in one line, for its service manager."""
    return count(runs, "run") if runs else "no runs"


STOPPED = "workers keep running"


def shuts_down(why: str) -> str:
    return f"shutting down; {why}"


CANNOT_CONTINUE = "cannot continue; workers keep running, and their agents retry"


def cannot_continue(why: str) -> str:
    return f"{CANNOT_CONTINUE}: {why}"
