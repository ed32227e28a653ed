"""NUMA binding: runs each worker on the CPUs near its GPU."""

from collections.abc import Callable
from typing import Annotated

from msgspec.structs import replace
from rdzv_protocol import words as protocol_words

from node_agent.flags import Flag, one_of
from node_agent.kernel.config import LaunchPlan, Options, UsageError

MODES = ("node", "socket", "exclusive", "core-complex")
"""Ways to choose the CPUs near a GPU, named as in torch."""


class NumaBinding(Options, frozen=True, kw_only=True):
    """Binding of workers to CPUs."""

    feature = "node_agent.features.numa.feature:NumaBinding"
    after = "virtual_local_rank"

    # fmt: off
    numa_binding: Annotated[str | None, Flag(
        "HOW", one_of(*MODES), "bind each worker to the CPUs near its GPU: node, socket, exclusive or "
        "core-complex", has_variable=False)] = None
    # fmt: on
    cpus: tuple[frozenset[int], ...] = ()
    """CPUs that each worker may use, by local rank; empty for all."""

    @property
    def is_on(self) -> bool:
        return bool(self.cpus)

    @property
    def needs_pci_addresses(self) -> bool:
        return self.numa_binding is not None

    def completed(self, plan: LaunchPlan, source: Callable[[str], str]) -> "NumaBinding":
        if self.numa_binding is None or plan.pci_addresses is None:
            return self
        from node_agent.features.numa.binding import NumaError, near_gpus

        try:
            return replace(
                self, cpus=near_gpus(self.numa_binding, plan.pci_addresses, plan.config.join.local_world_size)
            )
        except NumaError as error:
            wanted = f"{source('numa_binding')} {self.numa_binding}"
            raise UsageError(protocol_words.flags.bad_value(wanted, str(error))) from None
