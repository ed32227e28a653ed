"""Write `messages.txt`, `help.txt` and generated pages of the reference, or list the sentences that tests quote."""

import argparse
from pathlib import Path

from tests.golden import __doc__ as description
from tests.golden.help_pages import HELP_FILE, help_text
from tests.golden.makers import FILE, text
from tests.golden.quotes import TESTS, quotes
from tests.golden.reference_pages import reference_pages


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write messages.txt, help.txt and pages of docs/reference")
    parser.add_argument("--quotes", nargs="?", type=Path, const=TESTS, metavar="PATH", help="list quotes below PATH")
    args = parser.parse_args()
    if args.write:
        FILE.write_text(text())
        HELP_FILE.write_text(help_text())
        for path, page in reference_pages().items():
            path.write_text(page)
    if args.quotes:
        for file, line, quote in quotes(args.quotes.resolve()):
            print(f"{file.relative_to(TESTS.parent)}:{line}: {quote!r}")
    if not args.write and not args.quotes:
        print(text())


main()
