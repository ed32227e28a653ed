"""Facts of the machine: on which CPU something is measured."""

import os

import pytest

from benchmarks.machine import on_cpu


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one CPU")
def test_a_server_and_its_nodes_have_a_cpu_each():
    before = os.sched_getaffinity(0)
    first, second, *_ = sorted(before)
    with on_cpu(second):
        with on_cpu(first):
            assert os.sched_getaffinity(0) == {first}
        assert os.sched_getaffinity(0) == {second}
    assert os.sched_getaffinity(0) == before
