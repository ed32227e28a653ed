"""A network that delivers twice, and late: what has been taken once changes nothing when it arrives again."""

import pytest
from hypothesis import settings
from hypothesis.stateful import precondition, rule

from rdzv_server.core.events import Event, NodeJoined, NodeLeft, WorkersFailed, WorkersSucceeded
from tests.property.test_run_machine import RunStory

REQUESTS = (NodeJoined, NodeLeft, WorkersFailed, WorkersSucceeded)


class RepeatedStory(RunStory):
    """The same stories, in which every request that ever had an effect comes again, at any later time."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = []

    @precondition(lambda self: self.taken)
    @rule()
    def everything_arrives_again(self) -> None:
        for event, model in self.taken:
            recorded = len(self.records)
            super()._both(event, model)
            assert len(self.records) == recorded, event

    def _both(self, event: Event, model) -> None:
        recorded = len(self.records)
        super()._both(event, model)
        if isinstance(event, REQUESTS) and len(self.records) > recorded:
            self.taken.append((event, model))


TestRepeatedStory = pytest.mark.timeout(900)(RepeatedStory.TestCase)
TestRepeatedStory.settings = settings(max_examples=settings().max_examples // 2)
