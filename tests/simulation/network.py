"""Hosts, and connections between them and the server: TCP as an application sees it in bad conditions.

Messages of one connection arrive in order or not at all. A connection may break, which both ends see, or hang, which
neither sees. A host may be cut off. Messages under way are then lost with their connection, or arrive when the cut
heals, as TCP's retransmissions do. A request may also arrive twice, the second copy much later and over a separate
connection.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from random import Random

from simulation.clock import Call, Clock, Timer

LATEST_COPY_S = 25.0
"""Most seconds until a second copy arrives: after the agent has stopped waiting, tried again, or been fenced."""
SLOWEST_S = 20.0
SERVER_ADDR = "10.0.0.254"
QUICK_STOP_S = (0.0, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Chances of a message's fates, and its usual delay."""

    latency_s: float = 0.005
    slow: float = 0.0
    breaks: float = 0.0
    hangs: float = 0.0
    twice: float = 0.0


CALM = Weather()


class Host:
    """A machine. While frozen it does nothing and answers nothing. Calls that are due then happen when it thaws."""

    def __init__(self, clock: Clock, name: str, addr: str) -> None:
        self.name, self.addr = name, addr
        self.is_cut = False
        self.is_frozen = False
        self.is_suspect = False
        """Whether something happened to it that may make its agents silent."""
        self.is_disturbed = False
        """Whether one of its connections broke, or a message was late or lost."""
        self.own_fault_at = -inf
        """Time of the last fault of this host only, so not of the server or of a proxy, which concern all hosts."""
        self.path_down_until = 0.0
        """End of the latest time in which new connections are refused."""
        self.stop_takes_s = QUICK_STOP_S
        self._clock = clock
        self._held: list[Call] = []
        self._deferred: list[Timer] = []
        self._last_port = 30_000

    @property
    def now(self) -> float:
        return self._clock.now

    def later(self, delay_s: float, call: Call) -> Timer:
        """Make the call on this host after the delay, or when it thaws if it is frozen."""
        return self.at(self.now + delay_s, call)

    def at(self, when: float, call: Call) -> Timer:
        timer = self._clock.at(when, lambda: self._do(timer, call))
        return timer

    def suffers(self) -> None:
        """Note a fault of this host only."""
        self.own_fault_at = self.now
        self.is_disturbed = True

    def freeze(self) -> None:
        self.suffers()
        self.is_frozen = self.is_suspect = self.is_disturbed = True

    def thaw(self) -> None:
        self.own_fault_at = self.now if self.is_frozen else self.own_fault_at
        self.is_frozen = False
        deferred, self._deferred = self._deferred, []
        for timer in deferred:
            self._clock.later(0.0, timer.fire)

    def cut(self) -> None:
        self.suffers()
        self.is_cut = self.is_suspect = self.is_disturbed = True

    def heal(self) -> None:
        self.own_fault_at = self.now if self.is_cut else self.own_fault_at
        self.is_cut = False
        held, self._held = self._held, []
        for call in held:
            self._clock.later(0.0, call)

    def hold(self, call: Call) -> None:
        """Keep a message that arrives at the cut until the cut heals."""
        self._held.append(call)

    def fresh_port(self) -> int:
        self._last_port += 1
        return self._last_port

    def _do(self, timer: Timer, call: Call) -> None:
        if self.is_frozen:
            self._deferred.append(timer)
        else:
            call()


class Connection:
    """A TCP connection of a host to the server. `closed` is called at the host's end when it breaks."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.closed: Call | None = None
        self.hangs = False
        self.is_broken = False
        """Whether the connection is broken, at both ends."""
        self.is_closed = False
        """Whether the server has closed its end."""
        self.server_addr = SERVER_ADDR
        self.is_scoped = False
        self.arrives_at = [0.0, 0.0]
        """Times at which the last message arrives: at the host, at the server."""

    def held(self, seconds: float) -> None:
        pass


class Network:
    """Everything between the hosts and the server. `lost` is called at a connection's end at the server."""

    def __init__(self, clock: Clock, rng: Random, weather: Weather, lost: Callable[[Connection], None]) -> None:
        self.weather = weather
        self.has_greedy_proxy = False
        """Whether a proxy closes each connection after an answer."""
        self._open: dict[Connection, None] = {}
        """Connections that may be open at the server's end."""
        self._clock, self._rng, self._lost_by_server = clock, rng, lost

    def open(self, host: Host) -> Connection:
        connection = Connection(host)
        self._open[connection] = None
        return connection

    def server_died(self) -> None:
        """Break all connections. A host that is cut off does not see it."""
        for connection in self._open:
            connection.host.is_disturbed = True
            if connection.host.is_cut:
                connection.hangs = True
            else:
                connection.is_broken = True
                if connection.closed:
                    connection.host.later(self._jitter(), connection.closed)
        self._open.clear()

    def path_breaks(self, hosts: Collection[Host], within_s: float, down_s: float) -> None:
        """Break all connections of these hosts, one after the other, and refuse new ones for `down_s` seconds."""
        for host in hosts:
            host.path_down_until = max(host.path_down_until, self._clock.now + down_s)
        for connection in self._open:
            if connection.host in hosts:
                self._clock.later(self._rng.uniform(0.0, within_s), lambda each=connection: self._path_breaks(each))

    def _path_breaks(self, connection: Connection) -> None:
        if connection in self._open and not connection.hangs:
            self.break_(connection)

    def _lost(self, connection: Connection) -> None:
        if connection in self._open:
            del self._open[connection]
            self._lost_by_server(connection)

    def send(self, connection: Connection, deliver: Call, *, up: bool) -> None:
        """Carry a message `up` to the server or down to the host. `deliver` is called if and when it arrives."""
        weather, fate = self.weather, self._rng.random()
        if fate < weather.breaks:
            connection.host.suffers()
            self.break_(connection)
        elif fate < weather.breaks + weather.hangs:
            connection.host.suffers()
            connection.hangs = connection.host.is_suspect = True
        else:
            self._carry(connection, deliver, up, self._delay(connection.host))

    def send_again(self, host: Host, deliver: Callable[[Connection], None]) -> None:
        """Perhaps deliver a second copy of a request, over a connection whose answers are not read."""
        if self._rng.random() < self.weather.twice:
            host.is_suspect = True
            stray = Connection(host)
            after_s = self._rng.uniform(0.0, LATEST_COPY_S)
            self._clock.later(after_s, lambda: self._stray(stray, deliver))
            if self._rng.random() < 0.5:
                self._clock.later(after_s + self._rng.uniform(0.0, 1.0), lambda: self._lost(stray))

    def _stray(self, stray: Connection, deliver: Callable[[Connection], None]) -> None:
        self._open[stray] = None
        deliver(stray)

    def close(self, connection: Connection) -> None:
        """Close the host's end. The server notices after all earlier messages."""
        connection.closed = None
        self._carry(connection, lambda: self._lost(connection), True, self.weather.latency_s)

    def break_(self, connection: Connection) -> None:
        """Break the connection. Both ends see it, unless the host is cut off from one of them."""
        connection.is_broken = connection.host.is_disturbed = True
        if not connection.host.is_cut:
            self._clock.later(self._jitter(), lambda: self._lost(connection))
        if connection.closed:
            connection.host.later(self._jitter(), connection.closed)

    def _carry(self, connection: Connection, deliver: Call, up: bool, delay_s: float) -> None:
        at = max(self._clock.now + delay_s, connection.arrives_at[up])  # in order
        connection.arrives_at[up] = at
        self._clock.at(at, lambda: self._arrive(connection, deliver, up))

    def _arrive(self, connection: Connection, deliver: Call, up: bool) -> None:
        if connection.hangs or connection.is_broken:
            return
        if not connection.host.is_cut:
            deliver() if up else connection.host.later(0.0, deliver)
        elif self._rng.random() < 0.5:
            connection.hangs = True
        else:
            connection.host.hold(lambda: self._arrive(connection, deliver, up))

    def _delay(self, host: Host) -> float:
        if self._rng.random() < self.weather.slow:
            host.suffers()
            host.is_suspect = True
            return self._rng.uniform(0.0, SLOWEST_S)
        return self._jitter()

    def _jitter(self) -> float:
        return self.weather.latency_s * (0.5 + self._rng.random())
