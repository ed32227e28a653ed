"""The part of a page that is made from a run."""

import pytest

from benchmarks import page
from tests.unit.benchmarks.figures import a_run, a_swarm, row

pytest.importorskip("matplotlib")

AROUND = ("# Performance\n\nBy hand.\n\n", "\n\nMore by hand.\n")


@pytest.fixture
def written(tmp_path):
    """A page with nothing between its markers."""
    path = tmp_path / "performance.md"
    path.write_text(f"{page.BEGIN}\n{page.END}".join(AROUND))
    return path


def test_what_stands_around_the_markers_is_left_alone(written):
    page.write(str(written), a_run(), "2 CPUs")
    page.write(str(written), a_run(), "4 CPUs")
    before, part, after = _parts(written)
    assert (before, after) == AROUND
    assert "4 CPUs" in part
    assert "2 CPUs" not in part


def test_each_thing_is_one_line_with_a_column_for_each_launcher(written):
    page.write(str(written), a_run(), "2 CPUs")
    line = next(line for line in _rest(written).splitlines() if line.startswith("| worker killed"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        *("worker killed, 2 × 2", "**50 ms**", "≤ 80 ms", "met"),
        *("&gt; 60 s", "1.77 s", "not measured: etcd is not on PATH", ""),
        "30 ms (4 bare workers)",
    ]


def test_the_page_opens_with_few_rows_and_torchrun_at_its_best(written):
    page.write(str(written), [*a_run(), *a_swarm()], "2 CPUs")
    rows = [line for line in _parts(written)[1].splitlines() if line.startswith("| ")][2:]
    assert rows == [
        "| worker killed, 2 × 2 | **50 ms** | &gt; 60 s | 1.77 s | 30 ms |",
        "| swarm round: 10000 nodes | **2.40 s** |  |  |  |",
    ]
    assert f"](performance/{page.ALL_ROWS})" in _parts(written)[1]


def test_a_subject_without_a_column_has_a_line_of_its_own(written):
    page.write(str(written), a_swarm(), "2 CPUs")
    lines = _rest(written).splitlines()
    assert "| swarm round: 256 nodes | **60 ms** | ≤ 100 ms | met | &gt; 60 s |  |  |  |  |" in lines
    assert "| swarm round: 10000 nodes | **2.40 s** | ≤ 3 s | met |  |  |  |  |  |" in lines


def test_what_stands_beside_nothing_is_among_all_rows_alone(written):
    page.write(str(written), a_swarm(), "2 CPUs")
    (line,) = [line for line in _rest(written).splitlines() if "swarm restart" in line]
    assert line.split() == ["swarm", "restart", "10000", "nodes", *("1.90", "s") * 3, "1"]


def test_what_could_not_be_measured_is_said_and_cannot_break_the_page(written):
    trouble = "<b> | fell over\nthe rest of its log"
    page.write(str(written), [row(samples=(), bar=0.1, trouble=trouble)], "2 CPUs")
    part = _parts(written)[1] + _rest(written)
    assert "**not measured: &lt;b&gt; &#124; fell over**" in part
    assert "<b>" not in part
    assert "the rest of its log" not in part


def test_the_pictures_lie_beside_the_page(written):
    page.write(str(written), [*a_run(), *a_swarm()], "2 CPUs")
    for name in ("side-by-side.svg", "many-nodes.svg"):
        assert f"](performance/{name})" in _parts(written)[1]
        assert (written.parent / "performance" / name).is_file()


@pytest.mark.parametrize("text", ["no markers", page.BEGIN, f"{page.END} {page.BEGIN}"])
def test_a_page_without_both_markers_is_left_alone(written, text):
    written.write_text(text)
    with pytest.raises(page.Unwritable, match="needs the lines <!-- benchmarks: begin -->"):
        page.write(str(written), a_run(), "2 CPUs")
    assert written.read_text() == text


def test_a_page_that_is_not_there_is_named(tmp_path):
    with pytest.raises(page.Unwritable, match=r"nowhere\.md: No such file"):
        page.check(str(tmp_path / "nowhere.md"))


def _parts(path):
    """Before the first marker, between them, after the second."""
    before, _, rest = path.read_text().partition(page.BEGIN)
    part, _, after = rest.partition(page.END)
    return before, part, after


def _rest(path):
    """The page with every row."""
    return (path.parent / "performance" / page.ALL_ROWS).read_text()
