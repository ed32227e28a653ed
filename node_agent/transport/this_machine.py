"""Which host this is."""

import socket


def names_this_machine(host: str) -> bool:
    """Whether `host` is a name or an address of this machine.

    torch's rule (`_matches_machine_hostname`, torch 2.13), but without a lookup of this machine's own name, which takes
    long where names are not served: an address is one of this machine's if it can be bound. `host` itself is looked up
    if it is another's name: whoever connects there has to.
    """
    return host in ("localhost", socket.gethostname()) or any(map(_is_local, _resolve(host)))


def _resolve(host: str) -> set[str]:
    """The host's addresses; an address is its own."""
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, ValueError):
        return set()
    return {str(address[0]) for *_, address in found}


def _is_local(address: str) -> bool:
    """Only an address of this machine can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
