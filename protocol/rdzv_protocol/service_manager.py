"""Service manager that runs this process, such as systemd: notifications to it, and the sockets that it passes on.

The protocols are those of sd_notify(3) and sd_listen_fds(3): datagrams to the socket in NOTIFY_SOCKET, and descriptors
from 3 on, counted in LISTEN_FDS. Each variable is removed from the environment, since it is not meant for child
processes.
"""

import os
import socket
from collections.abc import Callable, MutableMapping
from contextlib import suppress

from rdzv_protocol.text import printable

FIRST_PASSED = 3
"""Descriptor of the first socket that is passed on."""
PATIENCE_S = 1.0
"""Most seconds for which a manager that does not read may block this process."""
BEATS_PER_DEADLINE = 3
"""Number of signs of life within the watchdog's time, after which the manager would consider the process hung."""

CallLater = Callable[..., object]
"""`call_later` of an event loop."""


class ServiceManager:
    """Connection to the manager.

    Messages that cannot be delivered are dropped: the process continues without its manager.
    """

    def __init__(self, address: str, watchdog_s: float | None) -> None:
        """`address`: a path, or a name in the abstract namespace after an @. `watchdog_s`: None without a watchdog."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._status = ""
        self._is_ready = self._is_stopping = False

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> "ServiceManager | None":
        """Return the manager that these variables name, or None."""
        address = environment.pop("NOTIFY_SOCKET", "")
        duration, watched = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        is_watched = duration.isdecimal() and int(duration) and watched in ("", str(os.getpid()))
        return cls(address, int(duration) / 1e6 if is_watched else None) if address.startswith(("/", "@")) else None

    def ready(self) -> None:
        """Notify once that the start is over: services that depend on this process may start."""
        if not self._is_ready:
            self._is_ready = True
            self._send("READY=1")

    def status(self, text: str) -> None:
        """Send one line for people who look at the service. An unchanged line is not sent again."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={printable(text)}")  # a line break would begin another field

    def stopping(self, within_s: float) -> None:
        """Notify once that the process will end within `within_s` seconds, even if the manager's own limit is
        shorter."""
        if not self._is_stopping:
            self._is_stopping = True
            self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={within_s * 1e6:.0f}")

    def watch(self, call_later: CallLater, status: Callable[[], str] | None = None) -> None:
        """Send signs of life from now on, with the current status, while the event loop calls back.

        A loop that hangs sends none, and the manager restarts the process.
        """
        if self._watchdog_s is None:
            return
        self._send("WATCHDOG=1")
        if status:
            self.status(status())
        call_later(self._watchdog_s / BEATS_PER_DEADLINE, self.watch, call_later, status)

    def _send(self, message: str) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.settimeout(PATIENCE_S)
            own.sendto(message.encode(errors="replace"), self._address)


def passed_sockets(environment: MutableMapping[str, str]) -> int:
    """Return the number of sockets that were passed to this process itself, not to one of its parents."""
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    return int(count) if pid == str(os.getpid()) and count.isdecimal() else 0
