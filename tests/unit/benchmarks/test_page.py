"""The part of a page that is made from a run, and its pictures."""

from importlib.util import find_spec

import pytest

from benchmarks import page
from tests.unit.benchmarks.figures import a_run, a_swarm, row

pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")

AROUND = ("# Performance\n\nBy hand.\n\n", "\n\nMore by hand.\n")


@pytest.fixture
def written(tmp_path):
    """A page with nothing between its markers."""
    path = tmp_path / "performance.md"
    path.write_text(f"{page.BEGIN}\n{page.END}".join(AROUND))
    return path


def test_the_page_opens_with_few_rows_and_torchrun_at_its_best(written):
    page.write(str(written), a_run(), "2 CPUs")
    page.write(str(written), [*a_run(), *a_swarm()], "4 CPUs")
    before, part, after = _parts(written)
    assert (before, after) == AROUND
    assert "4 CPUs" in part and "2 CPUs" not in part
    assert [line for line in part.splitlines() if line.startswith("| ")][2:] == [
        "| worker killed, 2 × 2 | **50 ms** | &gt; 60 s | 1.77 s | 30 ms |",
        "| swarm round: 10000 nodes | **2.40 s** |  |  |  |",
    ]
    assert f"](performance/{page.ALL_ROWS})" in part


def test_every_row_is_on_the_other_page_with_a_column_for_each_launcher(written):
    page.write(str(written), [*a_run(), *a_swarm()], "2 CPUs")
    lines = _rest(written).splitlines()
    (recovery,) = [line for line in lines if line.startswith("| worker killed")]
    assert [cell.strip() for cell in recovery.strip("|").split("|")] == [
        *("worker killed, 2 × 2", "**50 ms**", "≤ 80 ms", "met"),
        *("&gt; 60 s", "1.77 s", "not measured: etcd is not on PATH", ""),
        "30 ms (4 bare workers)",
    ]
    assert "| swarm round: 256 nodes | **60 ms** | ≤ 100 ms | met | &gt; 60 s |  |  |  |  |" in lines
    (beside_nothing,) = [line for line in lines if "swarm restart" in line]
    assert beside_nothing.split() == ["swarm", "restart", "10000", "nodes", *("1.90", "s") * 3, "1"]


def test_failed_measurements_are_reported_and_cannot_break_the_page(written):
    trouble = "<b> | fell over\nthe rest of its log"
    page.write(str(written), [row(samples=(), bar=0.1, trouble=trouble)], "2 CPUs")
    said = _parts(written)[1] + _rest(written)
    assert "**not measured: &lt;b&gt; &#124; fell over**" in said
    assert "<b>" not in said and "the rest of its log" not in said


@pytest.mark.parametrize("text", ["no markers", page.BEGIN, f"{page.END} {page.BEGIN}"])
def test_a_page_without_both_markers_is_unchanged(written, text):
    written.write_text(text)
    with pytest.raises(page.Unwritable, match="needs the lines <!-- benchmarks: begin -->"):
        page.write(str(written), a_run(), "2 CPUs")
    assert written.read_text() == text


def _parts(path):
    """Return the page's text before the first marker, between the two, and after the second."""
    before, _, rest = path.read_text().partition(page.BEGIN)
    part, _, after = rest.partition(page.END)
    return before, part, after


def _rest(path):
    """Return the page with every row."""
    return (path.parent / "performance" / page.ALL_ROWS).read_text()
