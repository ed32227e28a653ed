"""The command line of the benchmarks."""

import json

import pytest

from benchmarks.__main__ import MEASUREMENTS, main
from benchmarks.gpu import __main__ as gpu
from benchmarks.stage import Broken
from tests.unit.benchmarks.figures import row


@pytest.fixture
def measurements(monkeypatch):
    """A function that replaces a measurement."""
    return lambda name, measure: monkeypatch.setitem(MEASUREMENTS, name, ("made up", measure))


def test_a_failed_measurement_is_reported_and_the_next_one_runs(measurements, capsys, tmp_path):
    def fails(plan):
        raise Broken("fell over\nits log")

    measurements("launch", fails)
    measurements("recovery", lambda plan: [row()])
    assert main(["launch", "recovery", "--json", str(tmp_path / "rows.json")]) == 1
    said = capsys.readouterr()
    assert "launch, node-agent: could not be measured: fell over\nits log" in said.err
    assert "worker killed, 2 × 2  node-agent   50 ms" in said.out
    found = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [each["samples"] for each in found] == [[], [0.05]]


def test_a_program_that_the_machine_lacks_is_not_a_failure(measurements, capsys):
    measurements("launch", lambda plan: [row(samples=(), trouble="etcd is not on PATH", is_absent=True)])
    assert main(["launch"]) == 0
    assert "etcd is not on PATH" in capsys.readouterr().out


def test_an_interruption_prints_the_results_so_far(measurements, capsys):
    def is_interrupted(plan):
        raise KeyboardInterrupt

    measurements("launch", lambda plan: [row()])
    measurements("recovery", is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(["launch", "recovery"])
    assert "50 ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "words"), [(main, []), (main, ["year"]), (gpu.main, [])], ids=["all", "year", "gpu"]
)
def test_each_program_shows_its_help(program, words, capsys):
    with pytest.raises(SystemExit, match="0"):
        program([*words, "--help"])
    assert capsys.readouterr().out.startswith("usage: ")
