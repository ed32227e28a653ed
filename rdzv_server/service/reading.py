"""Reads of runs for people. If one run cannot be read, it is shown without details, and the others as usual."""

import logging
from collections.abc import Callable
from typing import TypeVar

from rdzv_server.core.kernel.run import Run
from rdzv_server.core.runs.set_apart import own_error
from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

T = TypeVar("T")


def read(run: Run, view: Callable[[], T], otherwise: Callable[[str], T]) -> T:
    """Return the view of the run. If that raises an exception, log it once and return the result of `otherwise`.

    `otherwise` is called with a sentence about the exception.
    """
    try:
        return view()
    except Exception as error:
        why = words.run_cannot_be_shown(own_error(error))
        if run.unreadable != why:
            run.unreadable = why
            log.exception("%s", words.of_run(run.run_id, why))
        return otherwise(why)
