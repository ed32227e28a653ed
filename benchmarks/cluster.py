"""Two agents on this machine, with two workers each."""

import time

from benchmarks.arrivals import FirstLine
from benchmarks.launchers import NPROC, Launcher
from benchmarks.stage import Program, Stage, free_port

AGENTS = 2


class Cluster:
    """A run of `launcher` whose workers have come to their first line."""

    def __init__(self, stage: Stage, launcher: Launcher, nnodes: str) -> None:
        port = free_port()
        if server := launcher.server(port):
            stage.start(server)
            stage.wait_for_port(port)
        began_s = time.monotonic()
        self.agents: list[Program] = [
            stage.start([*launcher.agent(number, nnodes, port), *stage.worker], launcher.environment)
            for number in range(AGENTS)
        ]
        self.workers: dict[int, FirstLine] = stage.first_lines(AGENTS * NPROC, began_s)
