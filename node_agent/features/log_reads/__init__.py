"""Log reads: operators who ask the server are shown the end of workers' log files."""

from typing import Annotated

from rdzv_protocol.queries import Query, TailLog

from node_agent.flags import our_switch
from node_agent.kernel.config import Options


class LogReads(Options, frozen=True, kw_only=True):
    """Permission to read logs. Without it the question is refused, which is an answer, too."""

    feature = "node_agent.features.log_reads.feature:LogReads"
    after = "tls_key"

    # fmt: off
    allow_log_reads: Annotated[bool, our_switch(
        "let users who may act on the run read the last lines of the workers' log files, which -r or -t writes: "
        "rdzvctl logs RUN RANK")] = False
    # fmt: on

    @property
    def is_on(self) -> bool:
        return False  # but for the queries

    @property
    def answers(self) -> tuple[type[Query], ...]:
        return (TailLog,)
