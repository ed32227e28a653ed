"""Summary of a run for the scheduler on which it runs: what an agent passes on with `--tell-scheduler`."""

from rdzv_protocol.messages import RunSummary
from rdzv_protocol.text import clip

from rdzv_server.core.kernel import progress, restart_budget
from rdzv_server.core.kernel.run import Run
from rdzv_server.core.views import health, run_view

SENTENCE_BYTES = 400


def view(run: Run, now: float) -> RunSummary:
    """Return the summary. Its cost and its size do not depend on the number of nodes."""
    found = health.findings(run, now)
    return RunSummary(
        phase=run_view.phase(run),
        health=found[0].state if found else "ok",
        sentence=clip(found[0].sentence if found else run_view.outlook(run, now).reason, SENTENCE_BYTES),
        round=run_view.workers_round(run),
        nodes=run_view.present(run),
        restarts=sum(run.restarts.values()),
        charged_restarts=restart_budget.used(run, now),
        max_restarts=run.settings.max_restarts,
        # The steps of the running round are not yet among those of the run.
        step=progress.higher(run.highest_step, run.pace.highest_step),
        checkpoint_step=progress.higher(run.checkpoint_step, run.pace.checkpoint_step),
    )
