"""Node checks: test whether this node is fit, before it joins and after its workers have ended."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated

from msgspec.structs import replace
from rdzv_protocol.queries import PairTest, Query

from node_agent.flags import WATCH, our_switch, ours, seconds, text
from node_agent.kernel.config import AgentConfig, Endpoint, LaunchPlan, Options, UsageError
from node_agent.kernel.core.log_options import NO_FILES

CHECKS = ("gpus", "ecc", "xid", "disk", "shm", "clock", "ports", "links", "storage", "network")
NETWORK = "network"
"""Check that two nodes run together, at the server's request."""


_NUMBER = r"\d{1,7}(\.\d{1,3})?"
_LINK = rf"[^\s:+/=]+(/\d+)?(:{_NUMBER})?"
_TEXTS = {"links": rf"{_LINK}(\+{_LINK})*", "storage": r"[^:]+(:[^:]+)*"}
"""Forms of the values that are no numbers: links, each perhaps with its Gbit/s, and folders."""


def checks(given: object) -> dict[str, float | str | None]:
    """Parse built-in checks, separated by commas, each with an optional limit: `disk`, `disk=20`, `storage=/data`."""
    found: dict[str, float | str | None] = {}
    for each in map(str.strip, text(given).split(",") if given else ()):
        name, has_limit, limit = each.partition("=")
        is_good = re.fullmatch(_TEXTS.get(name, _NUMBER), limit) if has_limit else name != "storage"
        if name not in CHECKS or not is_good:
            from node_agent.features.checks import words

            raise ValueError(words.needs_folder() if name == "storage" else words.not_a_check(CHECKS, each))
        found[name] = None if not has_limit else limit if name in _TEXTS else float(limit)
    return found


class NodeChecks(Options, frozen=True, kw_only=True):
    """Checks of this node, and the data that they need."""

    feature = "node_agent.features.checks.feature:NodeChecks"
    after = "ready_file"

    # fmt: off
    check: Annotated[Mapping[str, float | str | None], ours(
        "NAME,NAME", checks, "check this node before it joins, and again when its workers have ended. An unfit node "
        "leaves the run with exit code 71. Checks: gpus (present and of one kind; gpus=N: exactly N), ecc, xid (errors "
        "since boot), disk and shm (GiB free; default: 1), clock (seconds from the server's; default: "
        "5), ports, links (up and as fast as before; links=eth0+mlx5_0:400: these links, with Gbit/s), storage=PATH "
        "(write and read a file in this shared folder), network (MB/s to and from another node; default: 10)",
        task=WATCH)] = {}
    pre_join_check: Annotated[str, ours(
        "CMD", text, "check this node with a shell command of your own, too. Exit code 0: fit; 71: unfit; any other: "
        "the check is broken, and the node joins. The command's output becomes the evidence")] = ""
    pre_join_check_timeout: Annotated[float, ours(
        "S", seconds(0.1, 3_600), "kill a check after S seconds and treat the node as unfit (default: 60)")] = 60.0
    check_only: Annotated[bool, our_switch(
        "check this node now, print a table, and exit with 0 or 71; needs no SCRIPT", is_commands=True,
        needs_script=False)] = False
    # fmt: on
    server: Endpoint | None = None
    """Server whose clock is compared with this node's. A server on this node has the same clock."""
    tls: tuple[str, str | None, str | None] | None = None
    """Files for a server with TLS: its authorities ("system" for those that the system trusts), this node's
    certificate, and its key."""
    folder: str = ""
    """Folder of the workers' log files, empty for a temporary one."""

    @property
    def is_on(self) -> bool:
        return bool(self.check or self.pre_join_check)

    @property
    def answers(self) -> tuple[type[Query], ...]:
        return (PairTest,) if NETWORK in self.check else ()

    def completed(self, plan: LaunchPlan, source: Callable[[str], str]) -> "NodeChecks":
        if not self.is_on:
            if self.check_only:
                from node_agent.features.checks import words

                raise UsageError(words.nothing_to_check(source("check_only")))
            return self
        tls, log_dir = plan.credentials.tls, plan.config.logs.log_dir
        return replace(
            self,
            server=None if plan.target.hosts else plan.target.endpoint,
            tls=(tls.ca, tls.cert, tls.key) if tls else None,
            folder=log_dir if log_dir and log_dir != NO_FILES else "",
        )

    def run_instead(self, config: AgentConfig) -> int | None:
        if not self.check_only:
            return None
        from importlib import import_module

        check_only = import_module(
            "node_agent.features.checks.check_only"
        )  # by name, like a feature: it imports this module
        return int(check_only.run_checks_only(self, config))
