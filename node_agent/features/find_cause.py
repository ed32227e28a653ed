"""Feature: finds the worker whose failure others have noticed first. Imported when the server asks for it."""

import asyncio

from rdzv_protocol.queries import CauseSought, FindCause, Query, Refused

from node_agent.features import words
from node_agent.kernel.feature import Feature

LOOKS_AGAIN_AFTER = 0.7
"""Share of the query's time after which the agent looks for the last time, so that the report arrives in time.

A script may close its connections first, clean up, and only then raise its exception.
"""


class CauseFinder(Feature):
    """Answers to `FindCause`."""

    async def answer(self, query: Query) -> CauseSought | Refused:
        """Report a worker of the round that an exception has ended, if there is one, and return whether there is."""
        assert isinstance(query, FindCause)
        started = self.kernel.started
        if not started or query.round != started.assignment.round:
            return Refused(reason=words.no_workers(self.kernel.config.join.node_id, query.round))
        if await started.group.report_raised():
            return CauseSought(found=True)
        await asyncio.sleep(query.remaining_s * LOOKS_AGAIN_AFTER)
        return CauseSought(found=await started.group.report_raised())
