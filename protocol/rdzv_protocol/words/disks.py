"""Sentences about disks that do not answer."""

from collections.abc import Sequence


def hang(paths: Sequence[str]) -> str:
    return (
        f"waiting for a disk that does not answer: {', '.join(paths)}. If it is a network disk, check its server and "
        "its mount. To end this program, send SIGTERM two times. If it still runs, send SIGKILL"
    )
