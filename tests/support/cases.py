"""Many small cases of one claim in one test: to collect and report a case as a test takes longer than most cases do."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(name: object) -> Iterator[None]:
    """Name the case in the failure of what it does."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"The case is {name!r}.")
        raise
