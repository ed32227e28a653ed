"""Things that a program inherits from its parent and cannot work with."""

import os
import signal
import sys

_STDERR = 2


def correct() -> None:
    """Stop ignoring SIGCHLD, and open /dev/null in place of closed standard streams, for children too.

    The kernel does not keep the exit code of a child whose parent ignores SIGCHLD. A closed stdout would be the next
    file or socket that the program opens, and workers' output would be written to it.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if None in (sys.stdin, sys.stdout, sys.stderr):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
            os.set_inheritable(descriptor, True)
        os.close(descriptor)
