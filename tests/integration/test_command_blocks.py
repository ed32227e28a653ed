"""Command blocks of all pages. Each runs in the state in which its page leaves the reader.

The blocks of a page run in order, in one new folder, with the project's programs on PATH. A block runs unchanged,
except for names in capital letters and what `HERE` replaces. `ELSEWHERE` lists the blocks that another test runs or
that none of our machines can run. A new block fails until it runs here or is listed there.

A block that begins with `# terminal N` belongs to a terminal of the reader, where an agent keeps running while the next
blocks run. If such a block has no command, it shows what the agent in that terminal writes next.
"""

import os
import re
import shlex
import shutil
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.launchers import DIGITS, warm_python
from tests.support.programs import Program

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "deploy", "examples", "protocol", "benchmarks")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(console|bash|sh)\n(.*?)^\1```$", re.M | re.S)
TERMINAL = re.compile(r"# terminal (\d+)\n")
PATIENCE_S = 120.0
"""Limit of each wait in seconds, for a busy machine."""

TESTS = {
    name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
COPIED = ("Makefile", "constraints.txt", "deploy", "examples", "pyproject.toml", "tests")
"""Parts of the checkout in the folder of a page."""

FRAMEWORKS = "test_every_command_of_the_page_is_carried_out_here"
SECRETS, FOLDERS_TO_APPLY = (
    "test_the_pages_commands_make_every_secret_that_is_asked_for",
    "test_every_manifest_folder_exists_and_is_documented",
)
ELSEWHERE = {
    "README.md": {"node-agent --standalone": "test_one_node"},
    "docs/how-to/bad-nodes.md": {"node-agent --endpoint": "needs eight GPUs: test_the_command_lines_are_valid"},
    "docs/development/chaos.md": {"python -m tests.chaos": "takes half an hour: test_the_run_survives_the_campaign"},
    "docs/how-to/clusters.md": {
        "sbatch": "test_the_job_of_a_page",
        "torchx run": "test_an_elastic_run_continues_without_a_killed_agent_and_the_app_succeeds",
        "kubectl apply": f"needs a cluster: {FOLDERS_TO_APPLY}",
        "sudo python3": "test_the_page_installs_the_programs_where_the_units_look_for_them",
        "# the server's host": "test_the_commands_of_the_page_start_a_run",
        "docker compose": "test_the_command_of_the_page_ends_as_the_run_does",
        "#!/bin/bash": "test_the_exit_code_over_ssh_is_the_runs_outcome",
    },
    "docs/how-to/high-availability.md": {
        "pip install": "needs an etcd of three members: test_all_servers_die_and_one_returns"
    },
    "docs/how-to/frameworks.md": dict.fromkeys(
        ("node-agent", "PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "torchft_lighthouse"), FRAMEWORKS
    ),
    "docs/how-to/kubernetes.md": {"for role in": SECRETS, "kubectl apply": f"needs a cluster: {FOLDERS_TO_APPLY}"},
    "docs/how-to/migrate-from-torchrun.md": {
        "sbatch": "test_the_job_of_a_page",
        "export head": "test_a_script_that_was_written_for_torchrun",
        "torchrun": "test_a_run_of_two_nodes_is_on_the_status_page_and_succeeds",
    },
    "docs/how-to/upgrade-and-back-up.md": {"sudo": "test_an_upgrade_of_the_server_is_not_noticed"},
    "docs/how-to/troubleshoot.md": {"rdzvctl bundle": "test_a_bundle_has_the_parts_of_a_report_without_secrets"},
    "docs/reference/rdzvctl.md": {
        "rdzvctl status": "test_questions",
        "rdzvctl stacks": "needs 16 ranks that hang: test_the_rank_that_skips_a_collective_is_named",
        "rdzvctl drain": "test_actions",
        "rdzvctl config": "test_contexts",
        "pip install shtab": "test_a_shell_completes_names_from_the_server",
    },
    "docs/how-to/scale-past-one-server.md": dict.fromkeys(
        ("rdzv-server", "curl"), "needs an etcd: test_every_server_shows_the_leader_of_each_shard"
    ),
    "docs/how-to/slurm.md": {"sbatch": "test_the_job_of_a_page"},
    "docs/how-to/schedulers.md": dict.fromkeys(("srun", "rdzv-server"), "test_the_commands_on_the_page_of_schedulers"),
    "docs/how-to/show-in-the-scheduler.md": {
        **dict.fromkeys(("srun", "squeue"), "test_the_comment_of_a_job_shows_the_run_and_its_end"),
        "kubectl get job": "needs a cluster: test_a_job_gets_annotations_beside_its_own_and_nothing_else_changes",
        "kubectl get trainjob": "needs a cluster: test_a_train_job_gets_metrics_as_trainer_wants_them",
    },
    "docs/tutorials/slurm-with-a-spare.md": dict.fromkeys(
        ("cat", "sbatch", "grep", "scontrol"), "test_the_tutorial_runs_as_it_stands"
    ),
    "examples/gallery/README.md": {"pip install": FRAMEWORKS},
}
"""Blocks that other tests run, by the page and the block's first words: the test, and why the block cannot run here."""

TOKEN = "echo 0123456789abcdef0123456789abcdef >admin.token"
SERVER, RUN, BOOM = (
    "rdzv-server",
    "node-agent --endpoint HOST:29400 --run-id r1",
    "node-agent --endpoint HOST:29400 --run-id r1 --nnodes 2 --max-restarts 1",
)
BEFORE = {
    "README.md": {
        "rdzvctl": [f"{SERVER} --store memory", "node-agent --endpoint HOST:29400 --run-id hello --nnodes 2 wait.py"]
    },
    "docs/reference/actions.md": {"curl": [TOKEN, SERVER, f"{RUN} --node-id node-d wait.py"]},
    "docs/how-to/bad-nodes.md": {"node-agent --check": [SERVER]},
    "docs/reference/events.md": {
        "curl -s ": [SERVER, f"{BOOM} --node-id a boom.py", f"{BOOM} --node-id b boom.py # until round 2:"]
    },
    "docs/how-to/high-availability.md": {"curl": [SERVER]},
    "docs/reference/http-api.md": {"curl": [TOKEN, SERVER, f"{RUN} wait.py"]},
    "docs/reference/metrics.md": {"curl": [SERVER]},
    "docs/how-to/save-before-leaving.md": {
        "node-agent": [SERVER],
        ": >": ["export NODE_AGENT_NOTICE_ACK=ack NODE_AGENT_NOTICE_FILE=ack"],
    },
    "docs/reference/page.md": {"curl": [SERVER, f"{RUN} wait.py"]},
    "docs/reference/rdzvctl.md": {"pip install '.[ctl]'": [SERVER, f"{RUN} --nproc=4 -t 3 --allow-log-reads wait.py"]},
    "docs/how-to/monitor.md": {"curl": [SERVER]},
    "docs/how-to/troubleshoot.md": {"rdzvctl --endpoint": [SERVER, f"{RUN} wait.py"]},
    "docs/how-to/warm-workers.md": {"node-agent": [SERVER]},
}
"""State that a block needs: commands by the page and the block's first words. Agents keep running.

A comment is what an agent prints when the state is reached."""

SCRIPTS = {
    "train.py": "print('trained')",
    "wait.py": "import signal, sys\nfor stream in sys.stdout, sys.stderr: print('waits', file=stream, flush=True)\n"
    "signal.pause()",
    "boom.py": "import os, signal, sys, traceback\ntry:\n"
    "    if (os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']) == ('1', '0'): raise ValueError('boom')\n"
    "except ValueError:\n    traceback.print_exc()\n    sys.exit(3)\nsignal.pause()",
    "programs/save": "#!/bin/sh",
}
HERE = (
    (r"\b(?:HOST|SERVER|[abcd]):29400\b", "127.0.0.1:{port}"),
    (r"\bdigits\b", "digits-{port}"),
    (r"--epochs 30 --step-delay-ms 100", "--epochs 12 --step-delay-ms 10"),
    (r"--port 29400", "--port {port}"),
    (r"HOST_OF_RANK_0", "127.0.0.1 --master-port {port}"),
    (r"collector:4318", "127.0.0.1:9"),
    (r"(--nproc|--nproc-per-node) \d+", r"\1 1"),
    (r"torch(, ?)torch\.distributed", r"json\1csv"),
    (r"disk=20", "disk=0.001"),
    (r"\bsudo ", ""),
    (r"-m venv ", "-m venv --without-pip "),
    (r"/etc/rdzv/", "etc/rdzv/"),
)
"""Replacements for a cluster's names, and for parts that would cost too much or change this machine."""
VARIES = (
    (r"\.\.\.(?! SCRIPT)", ".*"),
    (r"\b[0-9a-f]{12,}\b", "[0-9a-f]+"),
    (r"\d[\d.:-]*", r"[\d.:-]+"),
    (r"gpu-a|\bn7\b|/tmp", r"\S+"),
    (r"  +", " +"),
)
"""Patterns of text that differs from the output on a page: omitted text, ids, numbers, names, columns."""
TRAINS = {"docs/tutorials/one-box.md", "docs/tutorials/two-nodes.md"}
"""Pages whose workers train. These workers are forks of one process, which imports torch once."""
OTHERWISE = {"docs/how-to/high-availability.md", "docs/reference/page.md"}
"""Pages with the output of several servers, or of a larger run."""


class Command(NamedTuple):
    """Command of a block, and the output that the page shows below it."""

    line: str
    shown: Sequence[str]


class Block(NamedTuple):
    """Command block of a page."""

    page: str
    language: str
    text: str

    @property
    def terminal(self) -> str | None:
        return match[1] if (match := TERMINAL.match(self.text)) else None

    @property
    def begins(self) -> str:
        return TERMINAL.sub("", self.text).removeprefix("$ ").splitlines()[0]

    def named_in(self, table: Mapping[str, Mapping[str, Any]]) -> str | None:
        """Return the first words under which the table lists this block, None if it does not."""
        return next((words for words in table.get(self.page, ()) if self.begins.startswith(words)), None)

    def commands(self) -> Iterator[Command]:
        """Yield its commands. A block without prompts is one script, unless it starts one of our programs."""
        text = self.text.replace("\\\n", " ")
        if self.language == "console":
            first, *pieces = re.split(r"^\$ ", text, flags=re.M)
            for piece in pieces or [first]:
                line, *shown = piece.splitlines()
                shown = [each for each in shown if each.strip() and not each.strip().startswith("#")]
                yield Command(line if pieces else "", shown)
        elif re.search(r"^(?:rdzv-server|node-agent) ", text, re.M):
            yield from (Command(line, []) for line in text.splitlines())
        else:
            yield Command(text, [])


def blocks_of(path: Path) -> list[Block]:
    page = str(path.relative_to(ROOT))
    found = (Block(page, match[2], textwrap.dedent(match[3])) for match in BLOCK.finditer(path.read_text()))
    return [block for block in found if block.language != "console" or "$ " in block.text or block.terminal]


BLOCKS = {str(path.relative_to(ROOT)): found for path in PAGES if (found := blocks_of(path))}
RUN_HERE = {page: [each for each in found if not each.named_in(ELSEWHERE)] for page, found in BLOCKS.items()}


class Reader:
    """Reader of one page who runs its blocks in one folder."""

    def __init__(self, folder: Path, port: int, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._values = {"port": port}
        self._exports: list[str] = []
        self._server: Program | None = None
        self._terminals: dict[str, Program] = {}
        self._shown = Counter[tuple[Program, str]]()
        for name, script in SCRIPTS.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(f"{script}\n")
            (folder / name).chmod(0o755)
        for name in COPIED:
            (folder / name).symlink_to(ROOT / name)
        path = (folder / "programs", Path(sys.executable).parent, os.environ["PATH"])
        own = {"PATH": ":".join(map(str, path)), "HOME": str(folder), "TMPDIR": str(folder), "COLUMNS": "200"}
        self._env = {**own, **environment}

    async def carry_out(self, block: Block) -> None:
        if words := block.named_in(BEFORE):
            for line in BEFORE[block.page][words]:
                await self._command(Command(line, []), stays=True)
        for command in block.commands():
            shown = command.shown if block.page not in OTHERWISE else []
            command = command._replace(shown=shown)
            if block.terminal and command.line.partition(" ")[0] in ("", "node-agent"):
                await self._at_terminal(block.terminal, command)
            else:
                await self._command(command)

    async def _at_terminal(self, terminal: str, command: Command) -> None:
        """Start an agent once the last one there has ended, and wait for each line that the page shows."""
        if command.line:
            if terminal in self._terminals:
                await self._terminals[terminal].exit_code(PATIENCE_S)
            self._terminals[terminal] = await self._start(self._here(command.line))
        agent = self._terminals[terminal]
        for line in command.shown:
            pattern = pattern_of(self._here(line))
            self._shown[agent, pattern] += 1
            await agent.line(pattern, PATIENCE_S, nth=self._shown[agent, pattern])

    async def _command(self, command: Command, stays: bool = False) -> None:
        """Run a command to its end. A server keeps running, and with `stays` an agent too."""
        line, program = self._here(command.line), command.line.split(" ", 1)[0]
        if program == "export":
            self._exports.append(line)
        elif program == "pip":
            assert_installs(shlex.split(line, comments=True)[2:])
        elif program == "rdzv-server":
            if self._server:
                await self._server.end()
            flags = "" if "--port" in line else f" --port {self._values['port']}"
            self._server = await self._start(re.sub(r"(rdzv-server)", rf"\1{flags}", line, count=1))
            await self._server.line("listening on", PATIENCE_S)
        elif program == "node-agent" and stays:
            agent = await self._start(line)
            _, _, until = line.partition("# until ")
            await agent.line(until or r"round \d+:|waiting for", PATIENCE_S)
        elif program == "node-agent":
            nodes = int((re.search(r"--nnodes (?:\d+:)?(\d+)", line) or "01")[1])
            agents = [await self._start(re.sub(r"\bR\b", str(rank), line)) for rank in range(nodes)]
            for agent in agents:
                await self._ends_well(agent, command)
        elif " -sN " in line or " --follow" in line:
            await (await self._start(line)).line(".", PATIENCE_S)
        else:
            done = await self._start(line.replace("make ", "make --dry-run "), is_script=True)
            await self._ends_well(done, command)
            assert done.out or " -o " in line or program not in ("curl", "rdzvctl"), command

    async def _ends_well(self, done: Program, command: Command) -> None:
        code = int((re.search(r"# exit code (\d+)$", command.line) or "00")[1])
        assert await done.exit_code(PATIENCE_S) == code, (command, done.err)
        told = "\n".join([*done.out, *done.err])
        for line in command.shown:
            assert re.search(pattern_of(self._here(line)), told), (line, told)

    async def _start(self, line: str, *, is_script: bool = False) -> Program:
        script = "\n".join(["set -euo pipefail", *self._exports, line if is_script else f"exec {line}"])
        clean = ["env", *(f"--unset={name}" for name in os.environ if name.startswith(("PET_", "RDZV_", "OTEL_")))]
        path = self._folder / ".script"  # so that its command line does not contain what it looks for in others
        path.write_text(script)
        words = [str(path)] if is_script else ["-c", script]
        return await Program.start(*clean, "bash", *words, env=self._env, cwd=self._folder)

    def _here(self, text: str) -> str:
        for theirs, ours in HERE:
            text = re.sub(theirs, ours.format(**self._values) if "{" in ours else ours, text)
        return text


def pattern_of(shown: str) -> str:
    """Return the pattern of a line that a page shows."""
    parts, at = [], 0
    for match in re.finditer("|".join(f"({theirs})" for theirs, _ in VARIES), shown):
        assert match.lastindex
        parts += [re.escape(shown[at : match.start()]), VARIES[match.lastindex - 1][1]]
        at = match.end()
    return "".join([*parts, re.escape(shown[at:])])


def assert_installs(words: Sequence[str]) -> None:
    """Check that each requirement is this checkout with existing extras, or a package of such an extra."""
    for word in words:
        extras = re.fullmatch(r"\.(?:\[([\w,]+)\])?", word)
        if extras:
            assert set((extras[1] or "").split(",")) - {""} <= EXTRAS.keys(), word
        else:
            assert any(need.startswith(word) for needs in EXTRAS.values() for need in needs), word


@pytest.mark.timeout(300)  # a tutorial trains for long on a busy machine
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.xdist_group(DIGITS) if page in TRAINS else ())
        for page, blocks in RUN_HERE.items()
        if blocks
    ],
)
async def test_the_blocks_of_a_page_run_one_after_another(page: str, tmp_path: Path, unused_tcp_port: int) -> None:
    for program in ("curl", "jq", "openssl", "make"):
        if not shutil.which(program):
            pytest.skip(f"{program} is missing")
    environment = warm_python(DIGITS, tmp_path, {"OMP_NUM_THREADS": "1"}) if page in TRAINS else {}
    reader = Reader(tmp_path, unused_tcp_port, environment)
    for block in RUN_HERE[page]:
        await reader.carry_out(block)


@pytest.mark.parametrize("table", [ELSEWHERE, BEFORE], ids=["elsewhere", "before"])
def test_the_tables_name_blocks_that_there_are(table: Mapping[str, Mapping[str, Any]]) -> None:
    for page, rows in table.items():
        assert {block.named_in(table) for block in BLOCKS[page]} - {None} == set(rows), page
    assert RUN_HERE.keys() >= TRAINS


def test_a_block_that_runs_elsewhere_names_a_test() -> None:
    for rows in ELSEWHERE.values():
        for reason in rows.values():
            assert reason.split()[-1] in TESTS, reason


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_installs_from_a_checkout(path: Path) -> None:
    """The project is not on a package index."""
    found = re.findall(r"pip install '?([^'`\s]+)'?", path.read_text())
    assert [each for each in found if each.startswith("rdzv")] == []
