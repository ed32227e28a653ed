"""Messages of `rdzv-server` about its command line, at its start and at its end."""

from collections.abc import Sequence

from rdzv_protocol.text import count
from rdzv_protocol.words import flags

# Values of flags.


def whole_number(low: int, high: int) -> str:
    return f"a number from {low} to {high}"


A_DESCRIPTOR = "the number of a file descriptor"
A_LEASE = "a whole number of seconds from 1 to 3600"
A_PORT = "a port is a number from 0 to 65535"
A_NUMBER_OF_SECONDS = "a number of seconds"
A_SPAN = f"{flags.A_TIME}, from 1s to 366d"


def other_value(wanted: str, text: str) -> str:
    return f"{wanted}, not {text!r}"


def no_window(text: str) -> str:
    return other_value("N/TIME, a number of times within a time, as in 3/24h", text)


def bad_window(most: int, text: str) -> str:
    return other_value(f"a number from 1 to {most}, and {flags.A_TIME}, as in 3/24h", text)


# Flags that do not go together.


def see_help(why: str) -> str:
    return f"{why} (rdzv-server --help-all explains every flag)"


def only_in_cluster(flag: str) -> str:
    return f"{flag} is for one of several servers: with --store etcd://HOST,HOST,HOST"


NEVER_IDLE = "--exit-when-idle: not with --store etcd://, where several servers stand by for any run"


NEVER_STANDS_BY = "--stand-by-for: not with --store etcd://, where servers elect their leader"


def needs_stand_by_for(flag: str) -> str:
    return f"{flag} needs --stand-by-for HOST:PORT: without it the server serves at once"


def needs_exclude_after(flag: str) -> str:
    return f"{flag} needs --exclude-after N/TIME: without it no node is kept out"


def not_executable(program: str) -> str:
    return f"--on-exclude: {program} is not a program that can be executed: check the path, and chmod +x it"


NO_OWN_CERTIFICATE = "--tls-client-ca needs --tls-cert and --tls-key, too"


def needs_token_file(flag: str) -> str:
    return f"{flag} needs --token-file, too: without it no agent could take part"


def no_otel(why: str) -> str:
    return f"--otel {why}"


def needs_aetcd(why: str) -> str:
    return f"--store etcd:// needs aetcd ({why}): pip install '.[etcd]' in a checkout of rdzv-server"


# Sockets and files.


def too_many_sockets(passed: int) -> str:
    return f"the service manager has passed {passed} sockets (LISTEN_FDS), and one is wanted: give one ListenStream="


def no_passed_socket(descriptor: int, why: str | None) -> str:
    return f"descriptor {descriptor}, which the service manager should have passed (LISTEN_FDS): {why}"


NOT_LISTENING = "it does not listen"
PASSED_NO_LISTENER = (
    "the service manager has passed what is no listening TCP socket: give ListenStream=PORT, and no Accept=yes"
)


def bad_listen_fd(descriptor: int, why: str) -> str:
    return f"--listen-fd {descriptor}: {why}"


def port_in_use(port: int) -> str:
    return f"port {port} is in use on this machine: stop what uses it, or choose another with --port (0: a free one)"


def port_needs_privileges(port: int) -> str:
    return f"port {port} needs privileges: choose one above 1023 with --port"


def cannot_listen(host: str | None, port: int, why: str) -> str:
    named = f"; name an address of this machine with --host, not {host}, or leave --host out" if host else ""
    return f"cannot listen on {host or 'every address'}, port {port}: {why}{named}"


def too_few_files(most: int) -> str:
    return f"this process may have {most} files open, too few to serve: raise its limit (ulimit -Hn, LimitNOFILE=)"


def too_few_files_for(connections: int, most: int, others: int) -> str:
    """`others`: number of files besides the connections."""
    return (
        f"--max-connections {connections}: this process may have {most} files open, and needs {others} besides; "
        "raise its hard limit (ulimit -Hn, LimitNOFILE=)"
    )


def few_connections(connections: int, most_files: int | None) -> str:
    """`most_files`: the limit of open files if that is the reason, or None if the flag is."""
    why = f"this process may have {most_files} files open (ulimit -Hn, LimitNOFILE=)" if most_files else ""
    return f"room for {connections} connections, and an agent has two: {why or 'see --max-connections'}"


def nothing_answers(host: str, port: int, why: str) -> str:
    """`--probe`."""
    return f"rdzv-server: nothing answers at {host}, port {port}: {why}"


def wrong_aiohttp(version: str, first: str, before: str) -> str:
    return f"aiohttp {version} is installed, and rdzv-server needs another: pip install 'aiohttp>={first},<{before}'"


# `--stand-by-for`


def stands_by(servers: Sequence[str]) -> str:
    return f"standing by for {', '.join(servers)}"


def serves(server: str) -> str:
    return f"{server} serves; taking over when it is gone"


def takes_over(servers: Sequence[str]) -> str:
    return f"{', '.join(servers)}: no answer; taking over, and agents form their runs anew here"


def steps_back(server: str) -> str:
    return f"{server} answers again; agents form their runs anew there"


# Start and end.


def listens_at(url: str, status: str) -> str:
    return f"listening on {url} (status: {status})"


def listens_everywhere(port: int, status_url: str) -> str:
    return f"listening on port {port} of every address (status here: {status_url})"


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


CANNOT_GO_ON = "cannot go on; workers keep running, and their agents try again"


def cannot_go_on(why: str) -> str:
    return f"{CANNOT_GO_ON}: {why}"
