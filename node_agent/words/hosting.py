"""Messages about a server that an agent hosts, as a separate process or within itself."""


def hosting(port: int, pid: int, is_for_this_machine: bool) -> str:
    reach = "which only agents of this machine can reach" if is_for_this_machine else "at every address"
    return f"hosting rdzv-server at port {port} (process {pid}), {reach}"


def hosting_fails(port: int) -> str:
    return f"cannot host rdzv-server at port {port}: see its message above"


def port_unusable(why: str) -> str:
    return f"cannot host it: {why}"


WAITING_FOR_OTHER_NODES = "waiting until the other nodes know that the run has ended"


def server_left_running(waited_s: float) -> str:
    return (
        f"after {waited_s:g} s, some nodes do not know yet that the run has ended; rdzv-server keeps running without "
        "this agent"
    )


def server_warns(warning: str) -> str:
    return f"rdzv-server: {warning}"
