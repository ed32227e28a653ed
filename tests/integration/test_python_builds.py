"""Pythons that lack functions for Linux's newer system calls, and systems that lack these calls."""

import os
import signal
import site
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from errno import ENOSYS, EPERM
from pathlib import Path
from zipfile import ZipFile

import pytest
import rdzv_protocol
from rdzv_protocol.words import tls

import node_agent
from node_agent import words
from rdzv_server.words import storage
from tests.support.message_search import message_fields
from tests.support.process_info import ended, guardians, until
from tests.support.programs import Program, refuses

FUNCTIONS = ("os.pidfd_open", "os.memfd_create", "os.MFD_CLOEXEC", "signal.pidfd_send_signal")
"""What a Python lacks that was built on an old system, such as conda's."""
DAEMON = "setsid sleep 1000 >/dev/null 2>&1 & echo daemon $!"
SECCOMP = Path(__file__).parent.parent / "support" / "seccomp.py"
PIDFD_CALLS = [424, 434]
"""Numbers of `pidfd_send_signal` and `pidfd_open`."""


@pytest.fixture(scope="module")
def older_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of this Python without the functions, also for programs that it starts."""
    folder = tmp_path_factory.mktemp("older")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    paths = [each for each in sys.path if os.path.isdir(each)]
    (packages / "all.pth").write_text("\n".join([*paths, *site.getsitepackages()]))
    named = "; ".join(f"{each.partition('.')[0]}.__dict__.pop('{each.partition('.')[2]}', 0)" for each in FUNCTIONS)
    (packages / "older.pth").write_text(f"import os, signal; {named}\n")
    return str(folder / "bin" / "python")


def written(script: Path, text: str) -> Path:
    script.write_text(text)
    return script


async def older_agent(python: str, script: Path, *flags: str) -> Program:
    return await Program.start(python, "-m", "node_agent", "--standalone", *flags, str(script), cwd=script.parent)


@asynccontextmanager
async def daemon_of(agent: Program) -> AsyncIterator[int]:
    """Return the pid of the daemon that the agent's worker starts. If the test fails, nothing else ends it."""
    pid = int((await agent.line(r"daemon (\d+)"))[1])
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:  # the agent has already ended it
        yield pid
        return
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


async def test_the_python_of_these_tests_lacks_the_functions(older_python: str) -> None:
    program = f"import os, signal\ntry:\n print({FUNCTIONS[0]})\nexcept AttributeError:\n print('lacks it')"
    assert await (await Program.start(older_python, "-I", "-c", program)).line("lacks it")


async def test_a_run_restarts_and_succeeds(older_python: str, tmp_path: Path) -> None:
    text = (
        "import os, sys\nfrom node_agent import progress\nprogress(1)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(3)\n"
        f"os.system('{DAEMON}')\n"
    )
    flags = ("--nproc", "2", "--max-restarts", "1", "--progress-timeout", "600")
    logs = ("-t", "3", "--log-dir", str(tmp_path / "logs"))
    rules = ("--log-rule", "fault: zzz", "--fatal-rule", "zzz")
    agent = await older_agent(older_python, written(tmp_path / "train.py", text), *flags, *logs, *rules)
    async with daemon_of(agent) as daemon:
        assert await agent.exit_code() == 0, agent.err
        await ended(daemon)
    assert not any("Traceback" in line for line in agent.err)


async def test_a_script_on_stdin_runs(older_python: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('from stdin')")
    command = f"exec {older_python} -m node_agent --standalone --nproc 2 - < train.py"
    agent = await Program.start("sh", "-c", command, cwd=tmp_path)
    assert await agent.exit_code() == 0, agent.err
    assert agent.out.count("from stdin") == 2


async def test_processes_of_a_killed_agent_end(older_python: str, tmp_path: Path) -> None:
    script = written(tmp_path / "train.py", f"import os, time\nos.system('{DAEMON}')\ntime.sleep(1000)")
    agent = await older_agent(older_python, script, "-t", "3", "--log-dir", str(tmp_path / "logs"))
    async with daemon_of(agent) as daemon:
        await until(lambda: guardians(agent.pid))
        os.kill(agent.pid, signal.SIGKILL)
        await ended(daemon)


async def test_functions_return_their_values(older_python: str, tmp_path: Path) -> None:
    script = tmp_path / "launch.py"
    script.write_text(
        "import os\nfrom node_agent import LaunchConfig, elastic_launch\n"
        "def rank():\n    return os.environ['RANK']\n"
        "if __name__ == '__main__':\n"
        "    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend='c10d',"
        " rdzv_endpoint='localhost:0', run_id='a')\n"
        "    print(elastic_launch(config, rank)())\n"
    )
    program = await Program.start(older_python, str(script))
    assert await program.exit_code() == 0, program.err
    assert program.out == ["{0: '0', 1: '1'}"]


def archived(archive: Path) -> Path:
    """Write an archive with the agent's packages."""
    with ZipFile(archive, "w") as written:
        for package in (node_agent, rdzv_protocol):
            folder = Path(package.__path__[0])
            for file in folder.rglob("*.py"):
                written.write(file, file.relative_to(folder.parent))
    return archive


async def test_an_agent_inside_an_archive_is_refused(tmp_path: Path) -> None:
    archive = archived(tmp_path / "agent.zip")
    run = f"import sys; sys.path.insert(0, {str(archive)!r}); from node_agent.__main__ import main; sys.exit(main())"
    agent = await Program.start(sys.executable, "-c", run, "--standalone", "--no-python", "true")
    await refuses(agent, words.plan.in_an_archive(f"{archive}/node_agent/cli"))


async def test_a_server_whose_python_lacks_sqlite_says_what_to_do(tmp_path: Path) -> None:
    lacks = "import sys; sys.modules['_sqlite3'] = None; from rdzv_server.__main__ import main; sys.exit(main())"
    server = await Program.start(sys.executable, "-c", lacks, "--port", "0", "--store", f"sqlite:{tmp_path}/runs.db")
    await refuses(server, "--store memory")
    assert message_fields(server.err[-1], storage.no_sqlite)["why"].startswith("import of _sqlite3")


@pytest.mark.parametrize(
    ("program", "package", "arguments"),
    [
        ("rdzv-server", "rdzv_server", ("--port", "0")),
        ("rdzvctl", "rdzvctl", ("status",)),
        (
            "node-agent",
            "node_agent",
            ("--endpoint", "https://127.0.0.1:1", "--tls-ca", "system", "--no-python", "true"),
        ),
    ],
)
async def test_a_program_whose_python_lacks_ssl_says_what_to_do(
    program: str, package: str, arguments: tuple[str, ...]
) -> None:
    lacks = f"import sys; sys.modules['_ssl'] = None; from {package}.__main__ import main; sys.exit(main())"
    started = await Program.start(sys.executable, "-c", lacks, *arguments)
    await refuses(started, f"start {program} with another Python")
    assert message_fields(started.err[-1], tls.no_ssl)["why"].startswith("import of _ssl")


async def test_an_agent_with_plain_http_needs_no_ssl(tmp_path: Path) -> None:
    lacks = "import sys; sys.modules['_ssl'] = None; from node_agent.__main__ import main; sys.exit(main())"
    script = written(tmp_path / "train.py", "print('trained')")
    agent = await Program.start(sys.executable, "-c", lacks, "--standalone", str(script))
    assert await agent.exit_code() == 0 and agent.out == ["trained"]


@pytest.mark.parametrize("call", PIDFD_CALLS)
@pytest.mark.parametrize("error", [ENOSYS, EPERM], ids=["an old kernel", "an old container engine"])
async def test_a_system_without_pidfds_is_refused_before_anything_starts(call: int, error: int) -> None:
    forbids = (sys.executable, str(SECCOMP), str(error), str(call), "--")
    agent = await Program.start(*forbids, sys.executable, "-m", "node_agent", "--standalone", "--no-python", "true")
    await refuses(agent, words.workers.no_pidfd(os.strerror(error)))
    assert len(agent.err) == 1


async def test_the_api_names_what_the_system_lacks(tmp_path: Path) -> None:
    script = tmp_path / "launch.py"
    script.write_text(
        "from node_agent import start_processes\nstart_processes('a', '/bin/true', {0: ()}, {0: {}}).wait()\n"
    )
    forbids = (sys.executable, str(SECCOMP), str(ENOSYS), str(PIDFD_CALLS[1]), "--")
    program = await Program.start(*forbids, sys.executable, str(script))
    assert await program.exit_code() == 1
    assert words.workers.no_pidfd(os.strerror(ENOSYS)) in "\n".join(program.err)
