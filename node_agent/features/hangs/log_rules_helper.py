"""Program that looks for the patterns of `--log-rule` in what workers write: see log_rules.py beside it.

A program of its own that imports nothing of ours. A regular expression may take for ever, and Python cannot interrupt
it: the kernel ends this process (SIGVTALRM) when the patterns have taken too much processor time for one line.

Its stdin is a socket to the agent, with one line of JSON a message. The first one has the patterns, each with its
number, and the processor time that a line may take. Each of the others is a list of lines. The answer has a match for
each pattern that is found in one of them: the number of the line, that of the pattern, the beginning of the line, and
what the pattern captures. The file whose descriptor is the argument begins with the number of the pattern that is being
looked for.
"""

import json
import mmap
import re
import resource
import signal
import socket
import sys

SHOWN = 400
"""Characters of a line, and of what is captured, in a match."""
NUMBER_BYTES = 4


def main(file: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    at = mmap.mmap(file, NUMBER_BYTES)
    with socket.socket(fileno=0) as line, line.makefile("rb") as asked, line.makefile("wb") as answers:
        given, cpu_s = json.loads(asked.readline())
        patterns = [(number, re.compile(pattern)) for number, pattern in given]
        for message in asked:
            matches = []
            for index, text in enumerate(json.loads(message)):
                signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
                for number, pattern in patterns:
                    at[:] = number.to_bytes(NUMBER_BYTES, sys.byteorder)
                    if match := pattern.search(text):
                        captured = match.group(1) if match.groups() else match.group(0)
                        matches.append((index, number, text[:SHOWN], (captured or "")[:SHOWN]))
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            answers.write(json.dumps(matches).encode() + b"\n")
            answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
