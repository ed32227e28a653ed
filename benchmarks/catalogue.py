"""Every measurement, by its name on the command line."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import (
    coordinator,
    floors,
    formation,
    logs,
    membership,
    neighbours,
    recovery,
    rounds,
    shards,
    single_node,
    timers,
)
from benchmarks.launchers import Plan
from benchmarks.results import Row


@dataclass(frozen=True, slots=True)
class Measurement:
    """`about`: for the command line's help."""

    about: str
    measure: Callable[[Plan], list[Row]]


MEASUREMENTS = {
    "floors": Measurement("a bare interpreter, a TCP round trip, import torch", floors.measure),
    "launch": Measurement("one node, exec to all workers' first line", single_node.measure),
    "memory": Measurement("the most that an agent's process has held", single_node.measure_memory),
    "idle": Measurement("how often an agent wakes up while nothing happens", single_node.measure_idle),
    "crowd": Measurement("eight agents started together, exec to all workers' first line", recovery.CROWD.measure),
    "recovery": Measurement("SIGKILL of a worker to all new workers", recovery.RECOVERY.measure),
    "warm": Measurement("the same, workers that import torch: warm and cold", recovery.measure),
    "elastic": Measurement("the same, two nodes of up to four", recovery.ELASTIC.measure),
    "lost-noticed": Measurement(
        "SIGKILL of a node to the survivor's new workers; they notice", membership.NOTICED.measure
    ),
    "lost-unnoticed": Measurement("the same, workers that do not notice", membership.UNNOTICED.measure),
    "silent": Measurement("SIGSTOP of a node to the survivor's new workers", membership.SILENT.measure),
    "scale-up": Measurement("a second node arrives, exec to all new workers", membership.SCALE_UP.measure),
    "replacement": Measurement(
        "a node takes a lost one's place, exec to all new workers", membership.REPLACEMENT.measure
    ),
    "timers": Measurement("torchrun in the last six where it waits for half a minute and more", timers.measure),
    "coordinator": Measurement("SIGKILL of the server: workers that end; agents that are back", coordinator.measure),
    "round": Measurement("the server's core forms a round, without a network", formation.measure),
    "swarm": Measurement("up to 10,000 simulated nodes at a real server", rounds.measure),
    "neighbours": Measurement("what another run notices of 10,000 nodes", neighbours.measure),
    "shards": Measurement("sixteen runs at one server, and shared by four", shards.measure),
    "logs": Measurement("workers that write as fast as they may", logs.measure),
}
