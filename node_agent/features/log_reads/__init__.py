"""Log reads: show the end of workers' log files to operators who ask the server."""

from typing import Annotated

from rdzv_protocol.queries import Query, TailLog

from node_agent.flags import our_switch
from node_agent.kernel.config import Options


class LogReads(Options, frozen=True, kw_only=True):
    """Permission to read logs. Without it the agent answers such a query with a refusal."""

    feature = "node_agent.features.log_reads.feature:LogReads"
    after = "tls_key"

    # fmt: off
    allow_log_reads: Annotated[bool, our_switch(
        "let users who may act on the run read the last lines of the workers' log files, which -r or -t writes: "
        "rdzvctl logs RUN RANK")] = False
    # fmt: on

    @property
    def is_on(self) -> bool:
        return False  # except for queries

    @property
    def answers(self) -> tuple[type[Query], ...]:
        return (TailLog,)
