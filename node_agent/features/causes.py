"""Feature: finds the worker whose failure others have noticed first. Imported when the server asks for it."""

from rdzv_protocol.queries import CauseSought, FindCause, Query, Refused

from node_agent.features import words
from node_agent.kernel.feature import Feature


class Causes(Feature):
    """Answers to `FindCause`."""

    async def answer(self, query: Query) -> CauseSought | Refused:
        """Report a worker of the round that an exception has ended, if there is one, and return whether there is."""
        assert isinstance(query, FindCause)
        started = self.kernel.started
        if not started or query.round != started.assignment.round:
            return Refused(reason=words.no_workers(self.kernel.config.join.node_id, query.round))
        return CauseSought(found=started.group.report_raised())
