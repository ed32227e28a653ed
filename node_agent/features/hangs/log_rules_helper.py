"""Program that searches the workers' output for the patterns of `--log-rule`: see log_rules.py beside it.

It is a separate program, which does not import this package. A regular expression may take forever, and Python cannot
interrupt it. So the kernel ends this process (SIGVTALRM) when the patterns have used too much processor time for one
line.

Its stdin is a socket to the agent, with one line of JSON a message. The first message has the patterns, each with its
number, and the processor time that a line may take. Each further message is a list of lines. The answer has one match
for each line and pattern found in it. A match consists of the line's number, the pattern's number, the beginning of
the line, and the captured text.

The argument is the descriptor of a file. The program keeps the number of its current pattern at the beginning of that
file.
"""

import json
import mmap
import re
import resource
import signal
import socket
import sys

SHOWN = 400
"""Most characters of a line, and of captured text, in a match."""
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
