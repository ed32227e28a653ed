"""What an agent logs of a server that it hosts: as a process of its own, or within itself."""


def hosting(port: int, pid: int, is_for_this_machine: bool) -> str:
    reach = "which only agents of this machine can reach" if is_for_this_machine else "at every address"
    return f"hosting rdzv-server at port {port} (process {pid}), {reach}"


def hosting_fails(port: int) -> str:
    return f"rdzv-server cannot be hosted at port {port}: see what it says above"


def port_not_to_be_had(why: str) -> str:
    return f"cannot host it: {why}"


WAITING_FOR_OTHER_NODES = "waiting until the other nodes have heard of the end"


def server_left_running(waited_s: float) -> str:
    return f"some nodes had not heard of the end after {waited_s:g} s; rdzv-server keeps running without this agent"


def server_warns(warning: str) -> str:
    return f"rdzv-server: {warning}"
