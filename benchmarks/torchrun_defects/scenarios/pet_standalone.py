"""Flags from the environment, as operators on Kubernetes set them: `PET_STANDALONE=true`."""

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation, codes
from benchmarks.torchrun_defects.run import alone
from benchmarks.torchrun_defects.stage import START_S, Stage


def observe(stage: Stage, launcher: Launcher) -> Observation:
    stage.finish()
    command = [word for word in launcher.standalone if word != "--standalone"]
    agent = alone(stage, launcher, command=command, environment={"PET_STANDALONE": "true"})
    stage.until(lambda: agent.exit_code is not None, START_S)
    says = [line.strip() for line in agent.text().splitlines() if "Error: " in line or "error: " in line]
    worked = agent.exit_code == 0 and bool(stage.reports)
    ended = f"exit code {codes([agent.exit_code])}"
    return Observation(worked, "; ".join([ended, *says[-1:]] if not worked else [ended, "the worker ran"]))
