"""The program that runs under valgrind: does every hot path, and marks where each begins and ends.

A mark is a call of the C library's `getppid`, which nothing else here calls and at which valgrind writes down, and sets
back to zero, what it has counted.
"""

import gc
import os

from tests.instructions.hot import hot_paths

mark = os.getppid


def main() -> None:
    gc.disable()
    for path in hot_paths():
        work = path.prepare()
        if path.times > 1:
            work(path.times)
        mark()
        work(path.times)
        mark()


if __name__ == "__main__":
    main()
