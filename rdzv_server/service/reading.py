"""Reads of runs for people. If one run cannot be read, it is shown without details, and the others as usual."""

import logging
from collections.abc import Callable
from typing import TypeVar

from rdzv_server.core.run import Run
from rdzv_server.core.set_apart import own_error

log = logging.getLogger("rdzv_server")

T = TypeVar("T")


def read(run: Run, view: Callable[[], T], otherwise: Callable[[str], T]) -> T:
    """Return the view of the run; if that raises an exception, log it once and return what `otherwise` makes of it.

    `otherwise` is called with a sentence about the exception.
    """
    try:
        return view()
    except Exception as error:
        why = (
            f"this run cannot be shown after {own_error(error)}. Its agents and workers are not affected. Report this "
            "with the server's log"
        )
        if run.unreadable != why:
            run.unreadable = why
            log.exception("run %s: %s", run.run_id, why)
        return otherwise(why)
