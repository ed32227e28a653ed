"""Writes a file in a folder, reads it again and compares, in a process of its own: a network disk may hang forever.

Argument: the folder. It prints the seconds that it took, or what is wrong. Exit codes: 0 if all is well, 1 if the
folder cannot be used, 2 if it returned other bytes than were written.
"""

import os
import socket
import sys
import tempfile
import time

BYTES = 1 << 20
CANNOT, OTHER_BYTES = 1, 2


def main(folder: str) -> int:
    """Return the exit code."""
    began = time.monotonic()
    try:
        is_same = written_and_read(folder)
    except OSError as error:
        print(error.strerror or error)
        return CANNOT
    print(f"{time.monotonic() - began:.3f}")
    return 0 if is_same else OTHER_BYTES


def written_and_read(folder: str) -> bool:
    """Write a file, read it, and return whether it has the same bytes. Raises `OSError`."""
    data = os.urandom(BYTES)
    file, path = tempfile.mkstemp(prefix=f".node-agent-check-{socket.gethostname()}-", dir=folder)
    try:
        with open(file, "wb") as writer:
            writer.write(data)
            writer.flush()
            os.fsync(writer.fileno())
        with open(path, "rb") as reader:
            os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # read the disk, not this node's memory
            return reader.read() == data
    finally:
        os.unlink(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
