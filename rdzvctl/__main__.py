"""`rdzvctl`, also as `python -m rdzvctl`."""

import sys


def main() -> int:
    """Run the program and return its exit code, also if Ctrl-C comes during its imports, or if Python lacks `ssl`."""
    try:
        from rdzvctl.cli import main

        return main()
    except KeyboardInterrupt:
        return 130
    except ImportError as error:
        if error.name != "_ssl":
            raise
        from rdzv_protocol import words
        from rdzv_protocol.exit_codes import ExitCode
        from rdzv_protocol.log_lines import complaint

        print(complaint("rdzvctl", words.tls.no_ssl("rdzvctl", str(error)), sys.argv[1:]), file=sys.stderr)  # noqa: T201
        return ExitCode.BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
