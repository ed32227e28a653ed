"""The observations as text, and as the documentation's page."""

from collections.abc import Iterable, Sequence

from benchmarks.machine import torch_version
from tests.parity.launchers import KEEP_ALIVE_S, KEEP_ALIVES, OWN_STORE
from tests.parity.observation import Finding
from tests.parity.scenarios import Defect

Row = tuple[Defect, Sequence[Finding]]

COMMAND = "python -m tests.parity"
PAGE = """# What torchrun gets wrong

Each line is a scenario that runs with torchrun {torch} and with node-agent, one after the other. The scenario knows no
launcher: it starts real agents, does something to them, and looks; one and the same condition gives both verdicts.
Line 13 is the exception: its stranger has to speak each one's language.

    {command} --write FILE
    {command} --only NAME ...

The first makes this page from one run, and nothing in the table is written by hand; the second runs some of its lines.
This run was on {machine}.
Nodes are agents on that one machine, and the loss of a node is SIGKILL of its agent and of its workers.

{table}

- torchrun gets what its flags and variables can do for it: keep-alives of {interval} s, where a node is lost after
  {attempts} of them (5 s and 3 by default), a last call of 1 s where nothing else is said, and
  `{own_store}`, without which a round may meet keys of the one before in its store. Where
  that may make the difference, torchrun also runs as it comes.
- node-agent and rdzv-server run with their defaults, but for the last call, which is torchrun's.
- "Defect shown" and "right" are of this run. What does not come every time is run several times, and counted.
- Seconds to a step together include the start of Python and torch in the workers; others end at a worker's first line.
"""


def markdown(rows: Iterable[Row], machine: str) -> str:
    lines = ["| | defect | torchrun | node-agent | to reproduce |", "|---|---|---|---|---|"]
    for number, (defect, findings) in enumerate(rows, start=1):
        torchrun, ours = (_cell([found for found in findings if found.is_ours is is_ours]) for is_ours in (False, True))
        lines.append(f"| {number} | {defect.title} | {torchrun} | {ours} | `--only {defect.name}` |")
    return PAGE.format(
        torch=torch_version().partition("+")[0],
        command=COMMAND,
        machine=machine,
        table="\n".join(lines),
        interval=KEEP_ALIVE_S,
        attempts=KEEP_ALIVES,
        own_store=OWN_STORE,
    )


def plain(rows: Iterable[Row]) -> str:
    """For a terminal: a block a defect."""
    blocks: list[str] = []
    for defect, findings in rows:
        block = [f"{defect.name}: {defect.title}"]
        for finding in findings:
            name = " ".join(filter(None, (finding.launcher, finding.variant)))
            block.append(f"  {name}: {finding.verdict.upper()}")
            block += [f"    {text}" for text in finding.saw()]
        blocks.append("\n".join(block))
    return "\n".join(blocks)


def _cell(findings: Sequence[Finding]) -> str:
    """The variant is named where there are several."""
    parts: list[str] = []
    for finding in findings:
        variant = f"{finding.variant}: " if len(findings) > 1 else ""
        parts.append(f"{variant}**{finding.verdict}**: {'<br>'.join(finding.saw())}")
    return "<br>".join(parts).replace("|", "\\|")
