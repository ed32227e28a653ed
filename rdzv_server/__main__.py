"""`rdzv-server`, also as `python -m rdzv_server`."""

import gc
import sys


def main() -> int:
    """Run the program and return its exit code, also if Ctrl-C comes during its imports, or if Python lacks `ssl`."""
    gc.disable()  # imports do not make garbage; the server collects it once it serves
    try:
        from rdzv_server.cli import main

        return main()
    except KeyboardInterrupt:
        return 1
    except ImportError as error:
        if error.name != "_ssl":
            raise
        from rdzv_protocol import words
        from rdzv_protocol.exit_codes import ExitCode
        from rdzv_protocol.log_lines import complaint

        print(complaint("rdzv-server", words.tls.no_ssl("rdzv-server", str(error)), sys.argv[1:]), file=sys.stderr)  # noqa: T201
        return ExitCode.BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
