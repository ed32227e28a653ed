"""Runs that are set apart because their core raised an exception. All other runs continue.

The exception may have left the run's state half changed. So the state is rebuilt from the records, which contain what
the run's agents may know. After that, nothing changes it: no deadline fires, no agent is lost, and reports are refused
until a server accepts them again.

Agents keep their workers. An operator can stop the run, or have it forgotten. A restarted server replays the records;
if that raises nothing, the run continues.
"""

from collections.abc import Sequence

from rdzv_protocol.errors import AgentFenced, ProtocolError, ServerUnavailable
from rdzv_protocol.messages import Directive, Finish, Wait
from rdzv_protocol.text import clip, printable

from rdzv_server.core import events
from rdzv_server.core.effects import Effect, ForgetRun, Record
from rdzv_server.core.kernel import final_report
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.run import END_DELIVERED_WITHIN_S, Stage
from rdzv_server.core.policies import POLICIES
from rdzv_server.words import attempts, operations
from rdzv_server.words import set_apart as words

SENTENCE_BYTES, ERROR_BYTES = 600, 160
LAST_REVISION = 2**53
"""Revision of a stop: higher than any revision that the agents know, since the records may not contain it."""
_IGNORED = events.NodeJoined | events.LeaseRenewed | events.AgentDisconnected | events.TimePassed | events.NodeOperation
"""Events that have no effect; their senders get the state of the run as their answer."""


class SetApart(RunMachine):
    """Attempt that is set apart. A machine becomes one in place (`set_apart`), because parked polls refer to it."""

    sentence: str
    _is_stopped: bool
    _is_forgotten: bool

    @property
    def is_unended(self) -> bool:
        return self.run.stage.is_end and not self._is_stopped and self.run.forget_at == self.run.ended_at

    def begin(self, error: Exception) -> None:
        """Drop the state, which `rebuild` rebuilds: until then agents are unknown."""
        self.sentence = sentence_of(self.run.run_id, error)
        self._is_stopped = self._is_forgotten = False
        run = self.run
        wall_at = run.wall_clock_ahead[0][1] + run.created_at
        created = events.RunCreated(run.run_id, run.attempt, run.explicit, run.settings, wall_at)
        self._become(Record(*run.key, run.created_at, created))

    def rebuild(self, records: Sequence[Record], last_event: int, now: float) -> list[Effect]:
        """Rebuild the state from all records of the attempt. Return effects that inform people and agents.

        `last_event`: number of the attempt's last event that is written.
        """
        if records:
            self._replay_all(records)
        self.run.event_number = max(last_event, self.run.event_number)
        self._settle_apart()
        self.run.set_apart_at = now
        self.record_event("warning", self.sentence, now)
        self.wake(self.run.agents.values())
        return self._take_effects()

    def _replay_all(self, records: Sequence[Record]) -> None:
        """Replay the records up to the first one that raises, if any; after that, only operators' actions count."""
        self._become(records[0])
        for number, record in enumerate(records[1:], 1):
            try:
                super().replay(record.fact, record.at)  # type: ignore[arg-type]
            except Exception:
                self._replay_all(records[:number])
                for later in records[number:]:
                    if isinstance(later.fact, events.RunStopped | events.RunForgotten):
                        self._operate(later.fact, later.at)
                    elif isinstance(later.fact, events.EventsDropped):
                        self._events_dropped(later.fact, later.at)
                break

    def _become(self, created: Record) -> None:
        """Take the state of a run that has just been created."""
        assert isinstance(created.fact, events.RunCreated)
        RunMachine.__init__(self, created.fact, created.at, self._retention_s, POLICIES)
        self._settle_apart()

    def _settle_apart(self) -> None:
        """Stop taking part in anything that deadlines cause, after the state has been rebuilt."""
        self._take_effects()
        self.take_blames()
        self.awaits_verdict = False
        self.run.leases.clear()
        self.run.set_apart = self.sentence
        self.deadline = self.next_deadline()

    # Events that still have an effect.

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        """Handle what an operator may do with the run.

        Raises `ServerUnavailable` for anything else that would change it.
        """
        if isinstance(event, events.RunStopped | events.RunForgotten):
            self._operate(event, now)
        elif isinstance(event, events.EventsDropped):
            self._effects.append(Record(*self.run.key, now, event))
            self._events_dropped(event, now)
        elif not isinstance(event, _IGNORED):
            raise ServerUnavailable(self.sentence)
        ended_at = self.run.ended_at
        if ended_at is not None and now >= self._forget_at(ended_at):
            self._is_forgotten = True
            self._effects.append(ForgetRun(*self.run.key))
        self.deadline = self.next_deadline()
        return self._take_effects()

    def renew(self, event: events.LeaseRenewed, now: float) -> bool:
        """Ignore a sign of life."""
        return True

    def replay(self, fact: events.Fact | events.SnapshotPart, at: float) -> Sequence[Effect]:
        """Ignore a record: `rebuild` applies it."""
        return []

    def restart(self, now: float) -> None:
        """Do nothing: there are no leases."""

    def set_wall_clock(self, wall_at: float, now: float) -> list[Effect]:
        return []

    def has_news(self, agent_id: str, revision: int) -> bool:
        """Return whether to answer the agent at once. An agent that the records do not contain has to wait."""
        if self._is_forgotten or self._is_stopped or agent_id in self.run.departed_ids:
            return True
        return agent_id in self.run.agents and super().has_news(agent_id, revision)

    def directive_for(self, agent_id: str, now: float) -> tuple[int, Directive]:
        """Return an agent's directive according to the records, or a wait that says why the server decides nothing.

        The wait does not end workers. Raises `AgentFenced` if the agent was let go before.
        """
        if self._is_forgotten:
            raise AgentFenced(attempts.unknown_run(self.run.run_id))
        if self._is_stopped:
            return LAST_REVISION, Finish(succeeded=False, reason=clip(self.run.end_reason, final_report.REASON_BYTES))
        if agent_id not in self.run.agents and agent_id not in self.run.departed_ids:
            return 0, Wait(reason=self.sentence)
        try:
            revision, directive = super().directive_for(agent_id, now)
        except ProtocolError:
            raise
        except Exception:
            return 0, Wait(reason=self.sentence)
        return revision, Wait(reason=self.sentence) if isinstance(directive, Wait) else directive

    def next_deadline(self) -> float | None:
        """Return the time at which the run is forgotten, if it has ended. No other deadline fires."""
        ended_at = self.run.ended_at
        return None if ended_at is None else self._forget_at(ended_at)

    def _operate(self, fact: events.RunStopped | events.RunForgotten, now: float) -> None:
        """Stop the run, or have it forgotten, without reading its state: the agents hear that it has ended."""
        run = self.run
        if fact.request_id in run.answers or (run.stage.is_end and isinstance(fact, events.RunStopped)):
            return
        self._effects.append(Record(*run.key, now, fact))
        if not run.stage.is_end:
            self._stop(fact, now)
        if isinstance(fact, events.RunForgotten):  # agents that must stop hear of it first
            run.forget_at = (
                now
                if run.ended_at == now
                else (run.ended_at or now) + min(run.settings.lease_s, END_DELIVERED_WITHIN_S)
            )
            run.answer(fact, words.forgotten(run.run_id))

    def _stop(self, fact: events.RunStopped | events.RunForgotten, now: float) -> None:
        run = self.run
        run.stage, run.ended_at = Stage.FAILED, now
        run.end_reason = operations.stopped(fact.reason)
        self._is_stopped = run.is_stopped = isinstance(fact, events.RunStopped)
        if self._is_stopped:
            run.answer(fact, run.end_reason)
            self.record_event("run_stopped", run.end_reason, now, by=fact.by, request_id=fact.request_id or None)
            self.record_event("run_failed", run.end_reason, now)
        self.wake(run.agents.values())


def set_apart(machine: RunMachine, error: Exception) -> None:
    """Set a run apart because its core raised an exception."""
    if isinstance(machine, SetApart):
        raise error
    machine.__class__ = SetApart
    assert isinstance(machine, SetApart)
    machine.begin(error)


def refusal(machine: RunMachine, event: events.Event) -> ServerUnavailable | None:
    """Return the refusal of the event over which a run was set apart: it has no effect, and its sender tries again."""
    if not isinstance(machine, SetApart) or isinstance(event, _IGNORED | events.RunStopped | events.RunForgotten):
        return None
    return ServerUnavailable(machine.sentence)


def sentence_of(run_id: str, error: Exception) -> str:
    """Return the sentence about a run that is set apart: why, and what can be done."""
    return clip(words.set_apart(run_id, own_error(error)), SENTENCE_BYTES)


def own_error(error: Exception) -> str:
    """Describe an exception that is a fault of this server: what was raised, and where."""
    what = clip(printable(f"{type(error).__name__}{f': {error}' if str(error) else ''}"), ERROR_BYTES)
    where = error.__traceback__
    if where is None:
        return words.own_error(what)
    while where.tb_next:
        where = where.tb_next
    return words.own_error(what, where.tb_frame.f_code.co_filename.rpartition("/")[2], where.tb_lineno)
