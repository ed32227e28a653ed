"""What the environment says where the command line is silent: `PET_NNODES` for `--nnodes`, and so on.

Operators for Kubernetes set these, and torchrun reads them. As under torchrun, workers inherit them.
"""

from collections.abc import Iterable, Mapping

from node_agent.cli.flags import FLAGS, Flag


def texts(environment: Mapping[str, str], missing: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The variable and its text for each of the `missing` values that has one. An empty variable says nothing."""
    names = {name for name in environment if name.startswith(("PET_", "TORCH_ELASTIC_"))}
    if not names:
        return {}
    found = ((dest, _text(FLAGS[dest], environment, names)) for dest in missing)
    return {dest: given for dest, given in found if given}


def _text(flag: Flag, environment: Mapping[str, str], names: set[str]) -> tuple[str, str] | None:
    for name in flag.variables:
        if name in names and environment[name].strip():
            return name, environment[name]
    return None
