"""The job scripts of deploy/slurm, submitted to a real Slurm."""

import pytest

from tests.support.slurm import Slurm

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("programs")]


async def test_each_node_is_a_machine_of_its_own(slurm: Slurm) -> None:
    job = slurm.submit("--nodes=4", "--wrap", "srun --label hostname; getent hosts n3")
    assert await slurm.ended(job) == "COMPLETED"
    written = slurm.output(job)
    assert sorted(written.split("\n")[:4]) == [f"{number}: n{number + 1}" for number in range(4)]
    assert "10.29.0.4" in written
