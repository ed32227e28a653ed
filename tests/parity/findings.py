"""Findings of a scenario under each launcher, as text, as JSON and as a page of the documentation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.machine import torch_version
from tests.parity.run import KEEP_ALIVE_S, KEEP_ALIVES, OURS, OWN_STORE


@dataclass(frozen=True, slots=True)
class Observation:
    """One run of a scenario. `right`: whether it ended as a user may expect. `saw`: what happened, in a few words with
    figures.

    `took_s` replaces `{took}` in `saw`, so that runs which differ only in it can be reported together.
    """

    right: bool
    saw: str
    took_s: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Finding:
    """Results of one scenario's runs under one launcher. `broken`: why runs could not be observed."""

    launcher: str
    runs: list[Observation] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        return self.launcher == OURS.name

    @property
    def wrong(self) -> int:
        return sum(not run.right for run in self.runs)

    @property
    def verdict(self) -> str:
        if not self.runs:
            return "could not be measured"
        bad, good = ("WRONG", "right") if self.is_ours else ("defect shown", "not shown")
        counted = len(self.runs) if self.is_ours and not self.wrong else self.wrong
        return (bad if self.wrong else good) + (f" ({counted} of {len(self.runs)})" if len(self.runs) > 1 else "")

    def saw(self) -> list[str]:
        """Return what was seen in words. Of several runs each result appears once, with its count if above one."""
        seen: dict[str, list[float]] = {}
        for run in self.runs:
            seen.setdefault(run.saw, []).append(run.took_s or 0.0)
        texts = {_told(text, taken): len(taken) for text, taken in seen.items()}
        texts |= {why: self.broken.count(why) for why in self.broken}
        return [text if times == 1 else f"{times} × {text}" for text, times in texts.items()]

    def as_json(self) -> dict[str, Any]:
        return {
            "launcher": self.launcher,
            "verdict": self.verdict,
            "wrong": self.wrong,
            "runs": [{"right": run.right, "saw": told(run), "took_s": run.took_s, **run.figures} for run in self.runs],
            "broken": self.broken,
        }


def told(run: Observation) -> str:
    """Return what one run saw, in words."""
    return _told(run.saw, [run.took_s or 0.0])


def _told(text: str, taken: Sequence[float]) -> str:
    ends = dict.fromkeys(map(_figure, (min(taken), max(taken))))
    return text.replace("{took}", f"{' to '.join(ends)} s")


def _figure(value_s: float) -> str:
    return f"{value_s:.0f}" if value_s >= 20 else f"{value_s:.1f}" if value_s >= 1 else f"{value_s:.2f}"


@dataclass(frozen=True, slots=True)
class Row:
    """One defect, and its findings. `name`: on the command line. `title`: what goes wrong under torchrun."""

    name: str
    title: str
    findings: Sequence[Finding]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "findings": [each.as_json() for each in self.findings]}

    def plain(self) -> str:
        """Return a block for a terminal."""
        block = [f"{self.name}: {self.title}"]
        for finding in self.findings:
            block += [f"  {finding.launcher}: {finding.verdict.upper()}", *(f"    {text}" for text in finding.saw())]
        return "\n".join(block)

    def cell(self, *, is_ours: bool) -> str:
        """Return the page's cell for one launcher. If there are several variants, it names them."""
        findings = [finding for finding in self.findings if finding.is_ours is is_ours]
        parts = []
        for finding in findings:
            variant = f"{finding.launcher.partition(' ')[2]}: " if len(findings) > 1 else ""
            parts.append(f"{variant}**{finding.verdict}**: {'<br>'.join(finding.saw())}")
        return "<br>".join(parts).replace("|", "\\|")


PAGE = """# What torchrun gets wrong

Each line is a scenario that runs with torchrun {torch} and with node-agent, one after the other. A scenario does not
depend on the launcher: it starts real agents, does something to them, and looks at the result. The same condition
gives both verdicts. Line 13 is the exception: its stranger must use each launcher's protocol.

    python -m tests.parity --write FILE
    python -m tests.parity --only NAME ...

The first command makes this page from one run; no part of the table is written by hand. The second runs some of its
lines.
This run was on {machine}.
Nodes are agents on that one machine. To lose a node, the scenario sends SIGKILL to its agent and its workers.

| | defect | torchrun | node-agent | to reproduce |
|---|---|---|---|---|
{table}

- torchrun gets the flags and variables that help it most. Keep-alives come every {interval} s, and a node is lost
  after {attempts} of them (5 s and 3 by default). The last call is 1 s, unless the line says otherwise.
- torchrun also gets `{own_store}=1`, without which a round may find keys of the round before in its store. If this
  may make the difference, torchrun also runs with its defaults ("as it comes").
- node-agent and rdzv-server run with their defaults, except for the last call, which is the same as torchrun's.
- "Defect shown" and "right" are verdicts of this run. If a defect does not appear every time, the scenario runs
  several times, and the cell has the count.
- Seconds until all step together include the start of Python and torch in the workers; other times end at a worker's
  first line.
- The test suite runs every line except `one-crash` with node-agent. With torchrun it runs the lines that take seconds
  there: `restart-count`, `orphans` and `pet-standalone`.
- torchrun's other defects take half a minute or more to appear. Use the commands of the last column to see them, and
  add `--launcher torchrun` to run only torchrun.
"""


def page(rows: Iterable[Row], machine: str) -> str:
    """Return the documentation's page, in Markdown."""
    return PAGE.format(
        torch=torch_version().partition("+")[0],
        machine=machine,
        interval=KEEP_ALIVE_S,
        attempts=KEEP_ALIVES,
        own_store=OWN_STORE,
        table="\n".join(
            f"| {number} | {row.title} | {row.cell(is_ours=False)} | {row.cell(is_ours=True)} | `--only {row.name}` |"
            for number, row in enumerate(rows, start=1)
        ),
    )
