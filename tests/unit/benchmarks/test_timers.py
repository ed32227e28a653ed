"""Samples that are taken at the same time."""

import multiprocessing
import os

from benchmarks.stage import Broken
from benchmarks.timers import at_once

TIMEOUT_S = 30.0


def test_each_has_a_process_of_its_own_at_the_same_time():
    together = multiprocessing.get_context("fork").Barrier(2, timeout=TIMEOUT_S)

    def meet():
        together.wait()
        return [float(os.getpid())]

    one, another = at_once([meet, meet])
    assert len({os.getpid(), *one, *another}) == 3


def test_what_breaks_is_told_and_the_others_are_answered():
    def breaks():
        raise Broken("fell over")

    broken, dead, well = at_once([breaks, lambda: os._exit(1), lambda: [1.0]])
    assert isinstance(broken, Broken)
    assert str(broken) == "fell over"
    assert isinstance(dead, Broken)
    assert str(dead) == "its process ended early"
    assert well == [1.0]
