"""`record`: writes a worker's exception to its error file, from which the agent reports it; torch's decorator."""

import faulthandler
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

from node_agent.kernel.environment import ERROR_FILE
from node_agent.kernel.failures import error_file

P = ParamSpec("P")
R = TypeVar("R")


class ErrorHandler:
    """Writer of error files; torch's class of that name. Subclasses may override any method."""

    def initialize(self) -> None:
        """Prepare the process before the function runs: if the interpreter crashes, it prints the Python stacks."""
        with suppress(OSError, ValueError, AttributeError):  # no usable stderr
            faulthandler.enable(all_threads=True)

    def record_exception(self, e: BaseException) -> None:
        """Write the exception to the error file that the agent has named, if any. Raises `OSError`."""
        if path := os.environ.get(ERROR_FILE):
            stack = "".join(traceback.format_exception(e))
            error_file.write(path, error_file.content(f"{type(e).__name__}: {e}", stack))

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy the error file of a worker of this process's own run, with the exit code. Raises `OSError`."""
        content = error_file.copy(rootcause_error_file, error_code) if error_code else None
        content = content or error_file.load(rootcause_error_file)
        if content and (path := os.environ.get(ERROR_FILE)):
            error_file.write(path, content)


def get_error_handler() -> ErrorHandler:
    """Return a new handler; torch's function of that name."""
    return ErrorHandler()


def record(fn: Callable[P, R], error_handler: ErrorHandler | None = None) -> Callable[P, R | None]:
    """Decorate a worker's main function to record its exceptions, which are raised again.

    A `ChildFailedError` of a launcher that the function calls passes on the error of that run's first failed worker.
    `sys.exit(0)` within the function returns None.
    """
    handler = error_handler or get_error_handler()

    @wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as end:
            if end.code != 0:
                raise
            return None
        except Exception as error:
            if not hasattr(error, "get_first_failure"):
                handler.record_exception(error)
            elif error_file.load((failure := error.get_first_failure()[1]).error_file):
                handler.dump_error_file(failure.error_file, failure.exitcode)
            raise

    return wrapper
