"""Error files in torch's format: a worker's, written by `@record`, and the agent's own, for a scheduler.

    {"message": {"message": "ValueError: boom", "errorCode": 1,
                 "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1750000000"}}}

or {"message": "boom"}. The launcher adds `errorCode`. A worker's file may hold anything.
"""

import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from msgspec import Struct
from rdzv_protocol.messages import Failure

from node_agent import words
from node_agent.kernel.environment import ERROR_FILE
from node_agent.kernel.output.disk_space import in_words

MOST_BYTES = 1 << 20
TICK_S = 0.01
"""Seconds between two times of files that the kernel distinguishes, at most."""
WHOLE_SECOND_S = 1.0
"""The same if a disk, such as Lustre, counts whole seconds."""


class ErrorFile(Struct, frozen=True):
    """Usable content of a worker's error file, as the worker wrote it."""

    error: str = ""
    traceback: str = ""
    at: float | None = None
    """Time of the error in seconds since 1970, None if unknown."""
    problem: str = ""
    """Why the file cannot be read, empty if it can."""


def read(path: str) -> ErrorFile | None:
    """Return the content of the file, None if there is no file. If it is broken, the result describes the problem."""
    try:
        return interpret(_load(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return ErrorFile(problem=getattr(error, "strerror", None) or str(error))


def is_from_before(path: str, until: float) -> bool:
    """Return whether the file was certainly written before `until`, a time by `time.monotonic`; False if in doubt.

    The clock of a file server may differ from this node's. So the file's age is the time between it and a new file
    beside it, by the same clock.
    """
    beside = f"{path}.{os.getpid()}.new"
    try:
        written_at = os.stat(path).st_mtime
        with suppress(FileExistsError):
            os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC, 0o600))
        try:
            age_s = os.stat(beside).st_mtime - written_at
        finally:
            os.unlink(beside)
    except OSError:  # such as a full disk
        return False
    tick_s = TICK_S if written_at % 1 else WHOLE_SECOND_S
    return age_s - tick_s > monotonic() - until


def load(path: str) -> dict[str, Any] | None:
    """Return the content of a worker's file, None if there is no file or no message in it."""
    try:
        return _load(path)
    except (OSError, ValueError):
        return None


def copy(source: str, exit_code: int) -> dict[str, Any] | None:
    """Return the content of a worker's file with the exit code added, as torch passes it on; None if not possible."""
    content = load(source)
    if content and isinstance(content["message"], dict):
        content["message"]["errorCode"] = exit_code
    return content


def interpret(content: dict[str, Any]) -> ErrorFile:
    """Return the parts that torch reads: the call stack, or else the message. A wrong type counts as missing."""
    message = content["message"]
    if isinstance(message, str):
        return ErrorFile(message, message if "\n" in message.strip() else "", _time(content.get("timestamp")))
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    return ErrorFile(_text(message.get("message")), _text(extra.get("py_callstack")), _time(extra.get("timestamp")))


def content(error: str, traceback: str = "", at: float | None = None) -> dict[str, Any]:
    """Return the content that torch's `@record` would have written for this error."""
    extra = {"py_callstack": traceback or error, "timestamp": str(int(at or time.time()))}
    return {"message": {"message": error, "extraInfo": extra}}


def content_of(failure: Failure) -> dict[str, Any]:
    """Return the content of an error file about a worker's failure, with its exit code."""
    traceback = "\n".join(failure.traceback or failure.stderr_tail)
    recorded = content(failure.error or failure.cause, traceback, failure.failed_at)
    recorded["message"]["errorCode"] = failure.exit_code
    return recorded


def leave(
    error: str, failure: Failure | None, recorded: str, environment: Mapping[str, str], log: Callable[[str], None]
) -> None:
    """Write what ended the run, `failure` or `error`, to the agent's own TORCHELASTIC_ERROR_FILE if it has one.

    `recorded`: the failed worker's error file, if the worker was on this node.
    """
    path = environment.get(ERROR_FILE)
    if not path:
        return
    try:
        write(path, (copy(recorded, failure.exit_code) or content_of(failure)) if failure else content(error))
    except (OSError, ValueError) as problem:
        why = in_words(problem) if isinstance(problem, OSError) else str(problem)
        log(words.failures.error_file_not_written(path, ERROR_FILE, why))


def write(path: str, what: dict[str, Any]) -> None:
    """Write the agent's own error file, replacing an older one. Raises `OSError`; never waits for a reader.

    A scheduler may read the file at any time. So the file is replaced as a whole, if its folder takes a new file.
    """
    import json

    if folder := os.path.dirname(path):
        os.makedirs(folder, exist_ok=True)
    text, new = json.dumps(what), f"{path}.{os.getpid()}"
    is_plain = os.path.isfile(path) and not os.path.islink(path)
    if (is_plain or not os.path.lexists(path)) and os.access(folder or ".", os.W_OK):
        try:
            _write(new, text, os.O_EXCL)
            os.replace(new, path)
        except OSError:
            with suppress(OSError):
                os.unlink(new)
            raise
    else:
        _write(path, text, os.O_TRUNC)


def _write(path: str, text: str, flag: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | flag | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "w", encoding="utf-8") as file:
        file.write(text)


def _load(path: str) -> dict[str, Any]:
    """Return a JSON object whose message is a text or an object. Never waits for a writer.

    Raises `OSError`, or `ValueError` that says how the file is broken.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(words.failures.NOT_A_FILE)
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(words.failures.longer_than(MOST_BYTES))
    if not data.strip():
        raise ValueError(words.failures.EMPTY)
    import json

    try:
        content = json.loads(data)
    except (ValueError, RecursionError):  # bad JSON, bad UTF-8, a number of a million digits, too many brackets
        raise ValueError(words.failures.NOT_JSON) from None
    if not isinstance(content, dict) or not isinstance(content.get("message"), str | dict):
        raise ValueError(words.failures.NO_MESSAGE)
    return content


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _time(value: object) -> float | None:
    try:
        at = float(value) if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return None
    return at if 0 < at < 1e12 else None
