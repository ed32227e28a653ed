"""Maps from local ranks to what each worker gets, and what torch's `start_processes` refuses in them."""

from collections.abc import Mapping
from typing import Any

from node_agent.core.log_options import Std


def check_ranks(given: Mapping[int, Any], count: int, what: str) -> None:
    """Each local rank once, and nothing else. Raises `RuntimeError`, as torch does."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what}: a map from each local rank, not {type(given).__name__}")
    missing = [rank for rank in range(count) if rank not in given]
    strange = [key for key in given if key not in range(count)]
    if missing or strange:
        wrong = [*(f"{rank} is missing" for rank in missing), *(f"{key!r} is none" for key in strange)]
        ranks = f"the local ranks 0 to {count - 1}" if count else "no local ranks: there are no args"
        raise RuntimeError(f"{what}: its keys must be {ranks}; {', '.join(wrong)}")


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """One setting for every local rank, or each one's own with `Std.NONE` for those that are not named; as in torch."""
    if isinstance(val_or_map, Std):
        return dict.fromkeys(range(local_world_size), val_or_map)
    return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}


def checked_streams(given: Std | int | Mapping[int, Std | int], what: str) -> Std | dict[int, Std]:
    """Also as plain numbers, and torch's own `Std`. Raises `TypeError` or `ValueError`."""
    if isinstance(given, Mapping):
        for rank in given:
            if not _is_rank(rank):
                raise TypeError(f"{what}: a map from local ranks, not from {rank!r}")
        return {rank: _stream(value, f"{what}[{rank}]") for rank, value in given.items()}
    return _stream(given, what)


def checked_texts(given: Mapping[int, str] | None, what: str) -> Mapping[int, str] | None:
    """A map from local ranks to texts, or none. Raises `TypeError`."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or not all(_is_rank(rank) for rank in given):
        raise TypeError(f"{what}: a map from local ranks to texts, not {given!r:.80}")
    for rank, text in given.items():
        if not isinstance(text, str):
            raise TypeError(f"{what}[{rank}]: a text, not {text!r:.80}")
    return given


def checked_environments(given: Mapping[int, Mapping[str, str]]) -> None:
    """Names and values that the system takes. Raises `TypeError` or `ValueError`."""
    for rank, environment in given.items():
        for name, value in environment.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"envs[{rank}]: names and values are texts, not {name!r}: {value!r:.80}")
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"envs[{rank}]: no variable can be {name!r}: {value!r:.80}")


def _stream(value: Std | int, what: str) -> Std:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what}: Std.NONE, Std.OUT, Std.ERR or Std.ALL, not {value!r}")
    if value not in (0, 1, 2, 3):
        raise ValueError(f"{what}: 0 (none), 1 (stdout), 2 (stderr) or 3 (both), not {value!r}")
    return Std(int(value))


def _is_rank(key: object) -> bool:
    return isinstance(key, int) and not isinstance(key, bool) and key >= 0
