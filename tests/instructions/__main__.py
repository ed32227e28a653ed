"""`python -m tests.instructions`: what the hot paths take, beside what is recorded; `--write` records it."""

import argparse
import sys

from tests.instructions.count import complaints, expected, measure, why_not, write


def main() -> int:
    """Exit codes: 0 as recorded, 1 not so, 2 they cannot be counted here."""
    parser = argparse.ArgumentParser(prog="python -m tests.instructions", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record what is measured")
    args = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    measured = measure()
    if args.write:
        write(measured)
    recorded = expected()
    for name, figure in measured.items():
        print(f"{name:<40} {figure:10.4g} {recorded.get(name, float('nan')):10.4g}")
    said = complaints(recorded, measured)
    print("\n".join(said))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
