"""Finds the error in a process's last output: a Python traceback, or what Python and C++ print instead."""

import os
import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

_RANK = re.compile(r"\[rank\d+\]: ?")
"""Mark by torch at the beginning of each line of an uncaught exception."""
_HEADER = re.compile(r"(?:  \+ Exception Group )?Traceback \(most recent call last\):$")
_FRAME = re.compile(r'(?:  \| )?\s+File ".*", line \d+')
"""Frame of a traceback: also an exception group's own, but none of the exceptions in it."""
_GROUP_MARGIN = re.compile(r"  [|+] ?")
_IN_GROUP = re.compile(r" {4,}\| (?!Traceback |Exception Group |The above |During |.*\(\d+ sub-exceptions?\)$)(\S.*)")
"""Line of an exception in a group. Its frames have further spaces."""
_END_OF_GROUP = re.compile(r" {4,}\+-+$")
_CHAINED = re.compile(
    r"The above exception was the direct cause of the following exception:$"
    r"|During handling of the above exception, another exception occurred:$"
)
_THREAD = re.compile(r"Exception (?:ignored )?in thread (?:started by:? )?(.+?):?$")
"""Line by Python before the traceback of an exception that has ended a thread other than the main one."""
_BOX = re.compile(r"╭─+ Traceback \(most recent call last\) ─+╮$")
"""First line of a traceback by the library rich."""
_END_OF_BOX = re.compile("╰─")
_NO_CAUSE = re.compile(r"Exception ignored |--- Logging error ---$")
"""Line before the traceback of an exception that Python catches itself, such as one of `__del__`. It ends at most
a thread."""
_OF_TASK = re.compile(r"(future|handle): <")
"""Line before the traceback of an exception that has ended an asyncio task."""
_OF_CHILD = re.compile(r"Process .{1,200}:$")
_CHILD_FRAME = re.compile(r"\s+File .*\bprocess\.py\", line \d+, in _bootstrap$")
"""Outermost frame in a child of multiprocessing. Python writes `_OF_CHILD` before its traceback, but so may programs
before others."""
_SCRIPT_FRAME = re.compile(r"(?:  \| )?\s+File \"(?:.*, in <module>$|<frozen runpy>)|│.* in <module>\b")
"""Outermost frame of an exception that leaves a script. An exception that a function catches has another one."""
_FRAME_FILE = re.compile(r'\s+File "(.+)", line \d+')
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages)[/\\]")
_AT_EXIT = re.compile(
    r"Task exception was never retrieved$|Task was destroyed but it is pending!$|task: <|Exception in callback "
    r"|Call stack:$|Message: |Arguments: |.{0,4096}: ((Resource|Runtime)Warning|UserWarning: resource_tracker): "
)
"""Line that Python may write while it exits, besides those before a traceback."""
_FATAL_THREAD = re.compile(r"Current thread ")
MOST_AFTER = 10
"""Most lines after an exception that may be its message, if torch has not marked them."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.<>]*(:|$)")
"""Line below the frames of a traceback: the exception with its message. A stack that was printed has none."""
_NO_MESSAGE = re.compile(r"[\w.<>]+:\s*$")
"""Exception whose message begins on a later line. Python writes no colon after an exception without a message."""
_CONTINUES = re.compile(r"\s|[\w.]*(Error|Exception|Failed|Failure)\b")
"""Line after a colon that continues a message: it is indented, or quotes another error."""
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError): ")
_FATAL = re.compile(r"Fatal Python error: ")
_CXX = re.compile(r"terminate called after throwing an instance of '(.+)'")
_REFUSED = re.compile(
    r".{0,4096}py[^/:]{0,99}: "
    r"(No module named .+|Error while finding module specification for .+"
    r"|can't (?:open file|find '__main__' module) .+)"
)
"""Line by Python, after its own name, if it cannot run what its command line names. It then exits."""
_USAGE = re.compile(r"[Uu]sage: ")
_WRONG_USAGE = re.compile(r"([^:]{1,200}: error|Error): .+")
"""Last line by argparse or click about a wrong command line, after the usage."""
_TIMED_OUT = re.compile(r"Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!$")
"""First line of `faulthandler.dump_traceback_later`, which may then exit with 1."""
_OF_DUMP = re.compile(r"Current thread|Thread |Stack |  |$")
"""Line of the stacks that follow."""
_CXX_WHAT = re.compile(r"\s+what\(\):\s+(.*)")
_WITHOUT_REASON = re.compile(r"terminate called without an active exception$")
"""Line by the C++ library if C++ threads still run while the process exits. It does not say why the process exits."""
_ABORT = re.compile(
    r".{0,400}: Assertion .+ failed\.?$|\*\*\* .{1,200} \*\*\*: terminated$|Fatal glibc error: "
    r"|double free or corruption|corrupted (size|double-linked list)"
    r"|(free|malloc|malloc_consolidate|realloc|munmap_chunk)\(\): |" + _WITHOUT_REASON.pattern
)
"""Line by the C or C++ library before it aborts the process."""
_TRACEBACK = "Traceback (most recent call last):"
_GROUP = "Exception Group "
_CRASHES = {
    f"Fatal Python error: {crash}": signal
    for crash, signal in (
        ("Aborted", "SIGABRT"),
        ("Bus error", "SIGBUS"),
        ("Floating-point exception", "SIGFPE"),
        ("Illegal instruction", "SIGILL"),
        ("Segmentation fault", "SIGSEGV"),
    )
}
"""First lines of the fault handler, with the signals that end the process then."""
_FIRST_LINE_ENDS = (*_CRASHES, ":", "'")
"""Ends of all first lines of an error."""
_DUMP = re.compile(r"(?:Current thread|Thread|Stack) .*\(most recent call first\):")
_DUMP_WITHIN = 3
"""Most lines from the fault handler's first line to its first stack."""


class StderrError(Struct, frozen=True):
    """The last error and traceback of a process. Both are empty if the output does not show an error."""

    error: str = ""
    """The exception, as Python writes it: "ValueError: boom"."""
    traceback: tuple[str, ...] = ()
    """Lines of the traceback, from the first one that is left to the last one. In a chain, those of all exceptions."""
    is_uncaught: bool = False
    """Whether the exception ended the script: torch marks the lines of an uncaught exception. If the script has
    continued since, the exception has ended a child of it instead, which writes to the same stderr."""
    first_error: str = ""
    """The first exception of a chain, or in an exception group; empty if there is neither."""
    first_lines: tuple[str, ...] = ()
    """Lines of `traceback` about the first exception, or about all those in a group."""
    thread: str = ""
    """Name of the thread that the exception has ended; empty if that is the main thread, or not known."""


def find_error(
    lines: Sequence[str], signal: str = "", *, by_exception: bool = False, is_recent: bool = False
) -> StderrError:
    """Return the last error in these lines. In a chain of exceptions, the last one ended the process, and the first one
    was the cause.

    `signal`: name of the signal that ended the process; empty if it has not ended, or without a signal. `by_exception`:
    whether its exit code is that of an uncaught exception. `is_recent`: whether torch has marked the last exception so
    recently that exit handlers may have written all lines after it.
    """
    plain = _plain(lines, signal)
    aborted = max(_last(plain, _ABORT), _last(plain, _CXX)) if signal == "SIGABRT" else -1
    by_exception_or_abort = by_exception or aborted >= 0
    counts_mark = is_recent or by_exception_or_abort
    own = _until_own(plain, lines, by_exception=by_exception_or_abort, counts_mark=counts_mark)
    header, box = _last(plain[:own], _HEADER), _last(plain[:own], _BOX)
    if found := _fatal(plain):
        return found
    raised = max(header, box)
    found = (_boxed if box > header else _traceback)(plain[:own], lines[:own])
    if found and found.is_uncaught and not counts_mark and _has_continued_after_mark(lines[max(raised, 0) :]):
        found = replace(found, is_uncaught=False)
    if found and (found.is_uncaught or not 0 <= raised < aborted or _may_cause_abort(plain[raised : aborted + 1])):
        return found
    if found := _cxx(plain) or _refused(plain) or (_timed_out(plain) if by_exception else None):
        return found
    return StderrError(plain[aborted].strip(), tuple(plain[aborted:])) if aborted >= 0 else StderrError()


def is_of_script(traceback: Sequence[str]) -> bool:
    """Return whether the traceback of a thread's exception shows that the script started the thread, not a library.

    The first frames of a thread are Python's own, in `threading.py`. The next one is of the code that was started.
    """
    files = [found[1] for line in traceback if (found := _FRAME_FILE.match(line))]
    library = os.path.dirname(files[0]) if files and files[0].endswith("threading.py") else ""
    started = next((file for file in files if not file.endswith("threading.py")), "")
    return bool(library and started) and not (_LIBRARIES.search(started) or started.startswith(f"{library}/"))


def is_without_reason(error: str) -> bool:
    """Return whether the C++ library has aborted the process because of threads that still ran when it exited."""
    return _WITHOUT_REASON.match(error) is not None


def _may_cause_abort(lines: Sequence[str]) -> bool:
    """Return whether the exception may have ended the script before the abort, which is the last of these lines.

    Its traceback begins the lines. Else the script caught it, and continued.
    """
    *before, abort = lines
    return _leaves_script(before) and bool(_WITHOUT_REASON.match(abort) or not _has_continued(before))


def headline(lines: Sequence[str], *, is_whole: bool = True) -> str:
    """Return the first line of an error that is not blank. If it ends with a colon, its message begins on a later line,
    which follows.

    `is_whole`: whether all lines are the error's. Else another program or thread may have written the later line.
    """
    first, *later = [line for line in lines if any(map(str.isalnum, line))][:2] or [""]
    begins_later = first.rstrip().endswith(":") and bool(later)
    if begins_later and (is_whole or _NO_MESSAGE.match(first) or _CONTINUES.match(later[0])):
        return f"{first.strip()} {later[0].strip()}"
    return first.strip()


def _until_own(plain: Sequence[str], lines: Sequence[str], *, by_exception: bool, counts_mark: bool) -> int:
    """Return the number of lines up to the end of the traceback that may have ended the process.

    While Python exits, threads and children that need the main thread fail, and so does the cleaning up. Their
    tracebacks come after the one that ended the script. Errors of threads, children and tasks count if there is no
    other one, or if the other one may have been caught. `counts_mark`: whether a traceback with
    torch's mark counts, also if many other lines follow it.
    """
    until, of_another = len(plain), None
    while (header := max(_last(plain[:until], _HEADER), _last(plain[:until], _BOX))) >= 0:
        begin, _ = _chain(plain, header)
        before = plain[begin - 1] if begin else ""
        if _is_of_another(before, plain[header + 1 : header + 2]):
            of_another, until = of_another or until, begin - 1
        elif _NO_CAUSE.search(before):
            until = begin - 1
        else:
            is_marked = any(map(_RANK.match, lines[header : header + 2]))
            is_uncaught = is_marked and (counts_mark or not _has_continued_after_mark(lines[header:]))
            has_ended_script = is_uncaught or (by_exception and _leaves_script(plain[header:]))
            return until if has_ended_script else of_another or until
    return of_another or until


def _is_of_another(before: str, first_frame: Sequence[str]) -> bool:
    """Return whether a traceback after this line is of an exception that has ended a thread, a child or a task."""
    if _OF_CHILD.match(before):
        return any(map(_CHILD_FRAME.match, first_frame))
    return bool(_THREAD.match(before) or _OF_TASK.match(before))


def _has_continued(lines: Sequence[str]) -> bool:
    """Return whether the script has written too much after the traceback at the beginning of these lines to have ended.

    Tracebacks, and what Python writes while it exits, do not count.
    """
    has_any_next = False  # the next line at the left is an exception, with any name
    others = 0
    for line in lines:
        if not line.strip() or line[0] in " \t│╰":
            continue
        if _HEADER.match(line) or _BOX.match(line) or _NO_CAUSE.search(line):
            has_any_next = True
        elif has_any_next:
            has_any_next = False
        elif not any(form.match(line) for form in (_THREAD, _OF_TASK, _OF_CHILD, _CHAINED, _AT_EXIT)):
            others += 1
    return others >= MOST_AFTER


def _has_continued_after_mark(lines: Sequence[str]) -> bool:
    """Return whether the script has continued after the traceback at the beginning of these lines, which torch has
    marked. All lines of its message have the mark.
    """
    return _has_continued([line for line in lines if not _RANK.match(line)])


def _leaves_script(lines: Sequence[str]) -> bool:
    """Return whether the outermost frame of the traceback at the beginning of these lines is the script's own.

    Such an exception has most often ended the script. Scripts also log exceptions, but they catch most in a function.
    What follows does not tell: a message has several lines, and exit handlers and other threads still write.
    """
    return any(map(_SCRIPT_FRAME.match, lines[1:2]))


def _plain(lines: Sequence[str], signal: str) -> list[str]:
    """Return the lines without torch's marks. The first line of an error does not have the output before it that did
    not end its line, such as a progress bar.
    """
    plain = [_RANK.sub("", line, count=1) if _RANK.match(line) else line for line in lines]
    ends = [at for at, line in enumerate(plain) if line.endswith(_FIRST_LINE_ENDS)]
    last = next((at for at in reversed(ends) if plain[at].endswith(_TRACEBACK)), -1)
    for at in ends:
        start = _start(plain[at], plain[at + 1 : at + 1 + _DUMP_WITHIN], signal, is_before_traceback=at < last)
        if plain[at][:start].strip():
            plain[at] = plain[at][start:]
    return plain


def _start(line: str, following: Sequence[str], signal: str, *, is_before_traceback: bool) -> int:
    """Return where an error begins in its first line, 0 if the line is no such line or only quotes one.

    A log line may quote a child's crash. So a crash after other text needs further signs that it ended this process.
    """
    if line.endswith(_TRACEBACK):
        return _start_of_traceback(line)
    for crash, signal_of_crash in _CRASHES.items():
        if line.endswith(crash):
            signs = (signal == signal_of_crash, any(map(_DUMP.match, following)), not is_before_traceback)
            return len(line) - len(crash) if sum(signs) >= 2 else 0
    if line.endswith(":"):
        in_thread = _THREAD.search(line)
        return in_thread.start() if in_thread else 0
    is_own = signal == "SIGABRT" or (following and _CXX_WHAT.match(following[0]))
    terminated = _CXX.search(line) if is_own else None
    return terminated.start() if terminated else 0


def _start_of_traceback(line: str) -> int:
    """Return where a traceback begins in its first line, 0 if only an exception group's margin is before it."""
    before = line.removesuffix(_TRACEBACK)
    of_group = before.removesuffix(f"  + {_GROUP}")
    return len(of_group) if of_group.removesuffix(_GROUP).strip(" \t|+") else 0


def _traceback(plain: Sequence[str], lines: Sequence[str]) -> StderrError | None:
    """Return a traceback, even if its beginning is lost, or only the frame that comes with a syntax error."""
    frame = _last(plain, _FRAME)
    end = next((at for at in range(frame + 1, len(plain)) if _ends_frames(plain[at])), None) if frame >= 0 else None
    has_exception = end is not None and _EXCEPTION.match(_GROUP_MARGIN.sub("", plain[end], count=1).strip())
    start = _start_of_frames(plain, frame)
    is_stack = not has_exception and start > 0 and not plain[start - 1].endswith(_TRACEBACK)
    if is_stack and (before := _traceback(plain[:start], lines[:start])):
        return before  # the stack was printed after it
    if end is None:
        return None
    header = _last(plain[:frame], _HEADER)
    if header < 0 and any(not line[:1].isspace() for line in plain[:frame]):
        if not _SYNTAX.match(plain[end]):
            return None  # a frame without a traceback before it: a printed stack
        header = frame
    last = len(lines)  # a message may have some lines, so the lines after it belong to it...
    if _RANK.match(lines[end]):  # ... but if torch marks them, the next line without a mark does not
        last = next((at for at in range(end + 1, last) if not _RANK.match(lines[at])), last)
    else:
        last = min(last, end + 1 + MOST_AFTER)
    start = max(header, 0)
    begin, first_end = _chain(plain, start)
    is_uncaught = bool(_RANK.match(lines[end]))
    in_group = _in_group(plain[end + 1 :]) if _GROUP_MARGIN.match(plain[end]) else []
    last = max(last, end + 1 + len(in_group))
    error = headline([_GROUP_MARGIN.sub("", plain[end], count=1), *plain[end + 1 : last]], is_whole=is_uncaught)
    of_thread = _THREAD.match(plain[begin - 1]) if begin else None
    thread = of_thread[1] if of_thread else ""
    if begin == start:
        first_error = next((found[1].strip() for line in in_group if (found := _IN_GROUP.match(line))), "")
        of_first = tuple(in_group) if first_error else ()
        return StderrError(error, tuple(plain[start:last]), is_uncaught, first_error, of_first, thread)
    first_lines = plain[begin:first_end]
    first = _last(first_lines, _FRAME)
    first_error = next((line.strip() for line in first_lines[first + 1 :] if _ends_frames(line)), "")
    return StderrError(error, tuple(plain[begin:last]), is_uncaught, first_error, tuple(first_lines), thread)


def _boxed(plain: Sequence[str], lines: Sequence[str]) -> StderrError | None:
    """Return a traceback that the library rich has drawn."""
    header = _last(plain, _BOX)
    error, after = _below_box(plain, header)
    if not error:
        return None
    begin = header
    while begin >= 2 and _CHAINED.match(plain[begin - 2]):
        begin = max(_last(plain[: begin - 2], _BOX), 0)
    first_error, first_after = _below_box(plain, begin) if begin < header else ("", begin)
    return StderrError(
        error, tuple(plain[begin:after]), bool(_RANK.match(lines[header])), first_error, tuple(plain[begin:first_after])
    )


def _below_box(plain: Sequence[str], header: int) -> tuple[str, int]:
    """Return the exception below the box that begins with this line, and the index of the line after it."""
    end = next((at for at in range(header, len(plain)) if _END_OF_BOX.match(plain[at])), len(plain))
    return (plain[end + 1].strip(), end + 2) if end + 1 < len(plain) else ("", header)


def _start_of_frames(plain: Sequence[str], frame: int) -> int:
    """Return where the lines of frames begin to which this one belongs."""
    return next((at + 1 for at in range(frame - 1, -1, -1) if not plain[at][:1].isspace()), 0)


def _in_group(lines: Sequence[str]) -> Sequence[str]:
    """Return those of the lines after a group's own that are about the exceptions in it."""
    return lines[: _last(lines, _END_OF_GROUP) + 1]


def _chain(plain: Sequence[str], header: int) -> tuple[int, int]:
    """Return the beginning and the end of the first exception in the chain that ends with the traceback at `header`.

    Both are `header` if there is no chain.
    """
    begin, end = header, header
    while begin >= 2 and _CHAINED.match(plain[begin - 2]):
        end = begin - 2
        begin = max(_last(plain[:end], _HEADER), 0)
    return begin, end


def _ends_frames(line: str) -> bool:
    """Return whether the line is the exception itself: it starts at the left or at an exception group's margin."""
    inner = _GROUP_MARGIN.sub("", line, count=1) if _GROUP_MARGIN.match(line) else line
    return bool(inner.strip()) and not inner[0].isspace()


def _fatal(plain: Sequence[str]) -> StderrError | None:
    """Return the error as Python's fault handler prints it. Torch's `@record` switches that handler on."""
    at = _last(plain, _FATAL)
    if at < 0:
        return None
    dump = plain[at:]
    crashed = next((line for line in range(len(dump)) if _FATAL_THREAD.match(dump[line])), 0)
    if crashed:  # of all threads, the one that crashed
        end = next((line for line in range(crashed, len(dump)) if not dump[line].strip()), len(dump))
        dump = [dump[0], "", *dump[crashed:end]]
    return StderrError(dump[0].strip(), tuple(dump))


def _cxx(plain: Sequence[str]) -> StderrError | None:
    at = _last(plain, _CXX)
    if at < 0:
        return None
    kind = _CXX.match(plain[at])
    what = _CXX_WHAT.match(plain[at + 1]) if at + 1 < len(plain) else None
    assert kind
    return StderrError(f"{kind[1]}: {what[1]}" if what else kind[1], tuple(plain[at:]))


def _refused(plain: Sequence[str]) -> StderrError | None:
    """Return why Python could not run the script or module at all, or why the script has rejected its command line.

    This is the last line then.
    """
    written = [line for line in plain if line.strip()] or [""]
    if refused := _REFUSED.match(written[-1]):
        return StderrError(refused[1])
    is_usage = _WRONG_USAGE.match(written[-1]) and _last(written, _USAGE) >= 0
    return StderrError(written[-1].strip()) if is_usage else None


def _timed_out(plain: Sequence[str]) -> StderrError | None:
    """Return the error if the script's own timer may have ended the process. Its stacks are the last lines then."""
    at = _last(plain, _TIMED_OUT)
    is_last = at >= 0 and all(map(_OF_DUMP.match, plain[at + 1 :]))
    return StderrError(plain[at], tuple(plain[at:])) if is_last else None


def _last(lines: Sequence[str], pattern: re.Pattern[str]) -> int:
    """Return the index of the last line that matches the pattern, -1 if there is none."""
    return next((at for at in range(len(lines) - 1, -1, -1) if pattern.match(lines[at])), -1)
