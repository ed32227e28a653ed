"""Names and addresses of this host."""

import socket


def names_this_machine(host: str) -> bool:
    """Whether `host` is a name or an address of this machine.

    torch's rule (`_matches_machine_hostname`, torch 2.13), but without a lookup of this machine's own name, which takes
    long where names are not served: an address is one of this machine's if it can be bound. `host` itself is looked up
    if it is another's name: whoever connects there has to.
    """
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, ValueError):
        return False
    return any(_is_local(family, str(address[0])) for family, *_, address in found)


def _is_local(family: int, address: str) -> bool:
    """Whether the address is one of this machine's: only those can be bound."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
