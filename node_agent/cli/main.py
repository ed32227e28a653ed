"""The program `node-agent`: takes a command line and returns an exit code."""

import os
import sys
from collections.abc import Sequence

from msgspec.structs import replace
from rdzv_protocol import hung_disks
from rdzv_protocol.exit_codes import ExitCode

from node_agent.cli.command_line import read, up_to_script
from node_agent.cli.plan import plan_launch
from node_agent.cli.stdin import program_of
from node_agent.features.table import of_process
from node_agent.kernel import late_imports
from node_agent.kernel.config import PROGRAM, UsageError


def main(argv: Sequence[str] | None = None, *, use_env: bool = True) -> int:
    """Parse the command line, run the agent, and return the exit code; see `--help`.

    `use_env`: False to pass `--local-rank` to scripts, as `torch.distributed.launch` does.
    """
    further = of_process(os.environ)  # first, because the workers must not get its variables
    words = sys.argv[1:] if argv is None else argv
    hung_disks.begin(PROGRAM, lambda: up_to_script(words), os.environ.get("PET_LOG_FORMAT", ""))
    try:
        arguments = read(words, os.environ)
        plan = plan_launch(arguments, os.environ, use_env=use_env)
        for options in plan.config.features:
            if (code := options.run_instead(plan.config)) is not None:
                return code
        stdin = program_of(plan.config.command)
        config = replace(plan.config, stdin=stdin, features=(*plan.config.features, *further))
        late_imports.import_asyncio()
        if arguments.exit_with_run:
            hung_disks.end()
            from node_agent.supervisor import run
        else:
            from node_agent.agent import run  # only if the command line is valid
        return run(replace(plan, config=config))
    except UsageError as error:
        from rdzv_protocol.log_lines import complaint

        print(complaint(PROGRAM, str(error), words, os.environ.get("PET_LOG_FORMAT", "")), file=sys.stderr)  # noqa: T201
        return ExitCode.BAD_INPUT
    except KeyboardInterrupt:  # before the signal handlers were installed
        return ExitCode.FAILED
    finally:
        hung_disks.end()
