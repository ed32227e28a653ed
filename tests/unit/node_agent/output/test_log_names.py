"""Folders' names and lines' prefixes."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.output.log_names import LONGEST_NAME, PREFIX_NAMES, default_prefix, folder_name, prefix

RUN_IDS = st.text(st.characters().filter(str.isprintable), min_size=1, max_size=128)


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("nightly", "nightly"),
        ("job:12@cluster,a=b+c_d-e.f", "job:12@cluster,a=b+c_d-e.f"),
        ("../../etc/passwd", "_._.._etc_passwd"),
        ("/abs/olute", "_abs_olute"),
        (".hidden", "_hidden"),
        ("-rf *", "_rf__"),
        ("~root", "_root"),
        ("two words $(rm x)", "two_words___rm_x_"),
        ("Müller 训练", "Müller_训练"),
    ],
)
def test_a_run_id_stays_readable(run_id: str, name: str) -> None:
    assert folder_name(run_id) == name


@given(RUN_IDS)
def test_no_run_id_reaches_outside_its_folder(run_id: str) -> None:
    path = os.path.normpath(os.path.join("/logs", f"{folder_name(run_id)}_0"))
    assert os.path.dirname(path) == "/logs"
    assert not os.path.basename(path).startswith((".", "-"))


@given(RUN_IDS)
def test_no_run_id_is_too_long_for_a_file_system(run_id: str) -> None:
    assert len(os.fsencode(folder_name(run_id))) <= LONGEST_NAME


def test_the_default_prefix_is_torchruns() -> None:
    assert default_prefix("trainer", 3) == "[trainer3]:"


def test_a_template_is_filled_in_as_torchrun_does() -> None:
    names = {"role_name": "trainer", "rank": 12, "local_rank": 4, "node_id": "gpu-a", "group_rank": 1}
    assert set(names) == set(PREFIX_NAMES)
    assert prefix("${role_name}|$rank|${local_rank}|$$|${unknown}|$", **names) == "trainer|12|4|$|${unknown}|$"
    assert prefix("[${node_id}:${group_rank}] ", **names) == "[gpu-a:1] "
