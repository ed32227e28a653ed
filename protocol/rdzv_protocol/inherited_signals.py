"""Effects of signals that a program has inherited from its parent."""

import signal


def keep_exit_codes_of_children() -> None:
    """Stop ignoring SIGCHLD: the kernel keeps no exit code of a child whose parent ignores it."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
