"""Progress of a run's workers: signs that come with polls and that nothing is written down of."""

from rdzv_protocol.messages import Progress

from rdzv_server.core.run import ProgressSign, Run, Stage


def note(run: Run, agent_id: str, progress: Progress, now: float) -> None:
    """Keep what an agent tells of its workers' progress, if they are those of the running round."""
    if run.stage is Stage.RUNNING and progress.round == run.round and run.seat_of(agent_id):
        run.progress[agent_id] = ProgressSign(progress, now)
