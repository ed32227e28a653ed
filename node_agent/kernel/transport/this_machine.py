"""Names and addresses of this host."""

import socket


def names_this_machine(host: str) -> bool:
    """Return whether `host` is a name or an address of this machine.

    This is torch's rule (`_matches_machine_hostname`, torch 2.13), with one difference. It does not look up this
    machine's own name, which takes long without a name server. Instead it tries to bind an address, which works only on
    its own machine. It looks up `host` if that is another name, as every client must.
    """
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, ValueError):
        return False
    return any(is_local(family, str(address[0])) for family, *_, address in found)


def is_local(family: int, address: str) -> bool:
    """Return whether the address is one of this machine's: only those can be bound."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
