"""What `node-agent` does with its command line."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from node_agent.cli.parser import read
from node_agent.cli.plan import plan_launch
from node_agent.config import LaunchPlan, UsageError


def main(argv: Sequence[str] | None = None, *, use_env: bool = True) -> int:
    """Parse the command line and run the agent. Exit codes: see `--help`.

    `use_env` False: as `torch.distributed.launch`, scripts get `--local-rank`.
    """
    try:
        arguments = read(sys.argv[1:] if argv is None else argv, os.environ)
        return _run(plan_launch(arguments, os.environ, use_env=use_env))
    except UsageError as error:
        fail(str(error))
    except KeyboardInterrupt:  # before the signal handlers stood
        return 1


def fail(message: str) -> NoReturn:
    """End with one line and exit code 2."""
    print(f"node-agent: error: {message}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)


def _run(plan: LaunchPlan) -> int:
    """What the agent needs is loaded by and by: see docs/adr/0021."""
    _load_asyncio(with_tls=plan.credentials.tls is not None)
    from node_agent import agent_process

    return agent_process.run(plan)


def _load_asyncio(with_tls: bool) -> None:
    """Without `ssl`, where nobody asks for it, asyncio is what it is in a Python that was built without OpenSSL."""
    if with_tls or "ssl" in sys.modules or "asyncio" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # "there is none", see Python's reference, 5.3.1
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]
