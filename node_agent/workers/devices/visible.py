"""Which devices the variables leave that hide some."""

import re
from collections.abc import Sequence
from itertools import takewhile


def visible(value: str | None, uuids: Sequence[str]) -> list[int]:
    """Which devices a value of CUDA_VISIBLE_DEVICES leaves, in its order, as indices into `uuids`.

    Numbers, or beginnings of UUIDs that fit one device only; what follows the first entry that names none is ignored. A
    device named twice leaves none, as in torch. None leaves all.
    """
    if value is None:
        return list(range(len(uuids)))
    entries: Sequence[object]
    if value.startswith(("GPU-", "MIG-")):
        entries = names = list(takewhile(lambda entry: entry.startswith(value[:4]), value.split(",")))
        indices = [only_match(name, uuids) for name in names]
    else:
        entries = indices = list(takewhile(lambda number: number >= 0, map(leading_number, value.split(","))))
    chosen = list(takewhile(lambda index: 0 <= index < len(uuids), indices))
    return chosen if _distinct(entries) and _distinct(chosen) else []


def only_match(beginning: str, uuids: Sequence[str]) -> int:
    matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(beginning)]
    return matches[0] if len(matches) == 1 else -1


def leading_number(entry: str) -> int:
    """As C's strtoul: 1 for "1st"; -1 where there is no number."""
    match = re.match(r"[+-]?[0-9]+", entry.strip())
    return int(match[0]) if match else -1


def _distinct(values: Sequence[object]) -> bool:
    return len(set(values)) == len(values)
