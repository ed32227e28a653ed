"""`node-agent`, which notes what it has loaded when its first worker starts. Arguments: the note's file, then its own.

A line for each module; and "dataclass NAME" for each class that the standard library has made, methods and all, where
`protocol.classes` would have made what is needed.
"""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

NOTE = sys.argv.pop(1)
dataclasses: set[str] = set()
is_noted = False


def watch(event: str, details: tuple[Any, ...]) -> None:
    global is_noted
    if event == "exec" and getattr(details[0], "co_filename", "") == "<string>":
        dataclasses.update(being_made(sys._getframe(1)))
    elif event == "subprocess.Popen" and str(details[1][-1]).endswith("worker.py") and not is_noted:
        is_noted = True
        with open(NOTE, "w") as note:
            note.writelines(f"{line}\n" for line in [*sys.modules, *sorted(dataclasses)])


def being_made(frame: FrameType | None) -> Iterator[str]:
    """The class whose method is being compiled, unless it is one of ours."""
    classes, is_late = [], False
    while frame:
        if frame.f_code.co_name == "_process_class":
            cls = frame.f_locals["cls"]
            classes.append(f"dataclass {cls.__module__}.{cls.__qualname__}")
        is_late |= frame.f_globals.get("__name__") == "protocol.classes"
        frame = frame.f_back
    yield from [] if is_late else classes


if __name__ == "__main__":
    del sys.path[0]  # this folder
    sys.addaudithook(watch)
    from node_agent.__main__ import main

    sys.exit(main())
