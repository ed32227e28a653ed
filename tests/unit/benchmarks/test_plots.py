"""Pictures of the rows."""

import xml.etree.ElementTree as ElementTree

import pytest

from tests.unit.benchmarks.figures import RECOVERY, a_run, a_swarm, row

pytest.importorskip("matplotlib")

from benchmarks import plots


def test_the_same_figures_give_the_same_files(tmp_path):
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
        assert plots.draw(str(tmp_path / name), [*a_run(), *a_swarm()]) == ["side-by-side.svg", "many-nodes.svg"]
    for name in ("side-by-side.svg", "many-nodes.svg"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "another" / name).read_bytes()


def test_launchers_are_drawn_side_by_side(tmp_path):
    assert plots.draw(str(tmp_path), a_run()) == ["side-by-side.svg"]
    words = _words(tmp_path / "side-by-side.svg")
    assert {RECOVERY, "torchrun", "torchrun at its best", "node-agent", "floor", "bar"} <= words
    assert {"> 60 s", "1.77 s", "50 ms", "30 ms"} <= words


def test_rounds_are_drawn_by_the_number_of_nodes(tmp_path):
    plots.draw(str(tmp_path), [*a_run(), *a_swarm()])
    words = _words(tmp_path / "many-nodes.svg")
    assert {"simulated nodes", "node-agent: a round", "node-agent: a restart", "torchrun: a round", "> 60 s"} <= words


def test_a_picture_of_nothing_is_not_drawn(tmp_path):
    assert plots.draw(str(tmp_path), [row(samples=(), trouble="broken"), row("torchrun", (1.0,))]) == []
    assert list(tmp_path.iterdir()) == []


def _words(path):
    return {
        "".join(element.itertext()).strip() for element in ElementTree.parse(path).iter() if element.tag[-5:] == "}text"
    }
