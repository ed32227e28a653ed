"""What the workers execute."""

import os
import sys
from collections.abc import Mapping

from node_agent.cli.arguments import Asked
from node_agent.config import UsageError
from node_agent.core.command import LOCAL_RANK, Command

RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def make_command(asked: Asked, environment: Mapping[str, str], *, use_env: bool = True) -> Command:
    """As torchrun would start it; without `use_env` the script's first argument is its local rank.

    Raises `UsageError` if there is no such script or program, so that nothing is started.
    """
    arguments = asked.args if use_env else (f"--local-rank={LOCAL_RANK}", *asked.args)
    script = asked.script
    if asked["run_path"]:
        return _python(sys.executable, ("-c", RUN_PATH), script, arguments)
    python = environment.get("PYTHON_EXEC") or sys.executable
    if not asked["no_python"]:
        return _python(python, ("-m",) if asked["module"] else (), script, arguments)
    if asked["module"]:
        raise UsageError("-m is for Python modules, --no-python for other programs: give one of them")
    return Command((_program(script, environment),), arguments)


def _python(python: str, how: tuple[str, ...], script: str, arguments: tuple[str, ...]) -> Command:
    program = (python, "-u", *how)
    if "$" in script:  # torchrun substitutes the local rank there, too
        return Command(program, (script, *arguments))
    if how != ("-m",):
        _check_script(script)
    return Command((*program, script), arguments)


def _check_script(script: str) -> None:
    if not os.path.isfile(script) and not os.path.isfile(os.path.join(script, "__main__.py")):
        raise UsageError(f"there is no script {script} (looked in {os.getcwd()})")


def _program(name: str, environment: Mapping[str, str]) -> str:
    import shutil

    found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise UsageError(f"there is no program {name} (looked in PATH and {os.getcwd()})")
    return found
