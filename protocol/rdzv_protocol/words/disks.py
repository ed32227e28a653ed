"""Sentences about files that do not answer."""

from collections.abc import Sequence


def hang(paths: Sequence[str]) -> str:
    return (
        f"waiting for a file that does not answer: {', '.join(paths)}. If it is on a network disk, check the disk's "
        "server and mount. If it is a pipe, start its writer. To end this program, send SIGTERM two times. If it still "
        "runs, send SIGKILL"
    )
