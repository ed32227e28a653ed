"""`python -m tests.instructions`: shows the hot paths' instructions and the recorded ones. `--write` records them."""

import argparse
import sys

from tests.instructions.count import complaints, expected, measure, why_not, write


def main() -> int:
    """Run, and return 0 if the figures are as recorded, 1 if not, 2 if they cannot be counted here."""
    parser = argparse.ArgumentParser(prog="python -m tests.instructions", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record the measured instructions")
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
