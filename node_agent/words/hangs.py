"""Reasons for which an agent suspects that workers hang, by the source that has noticed it."""


def no_first_progress(for_s: float, limit_s: float) -> str:
    return f"no progress in the first {for_s:.0f} s (limit {limit_s:.0f} s)"


def no_progress(for_s: float, limit_s: float, step: int | None) -> str:
    at = "" if step is None else f" at step {step}"
    return f"no progress for {for_s:.0f} s{at} (limit {limit_s:.0f} s)"


def no_output(for_s: float, limit_s: float) -> str:
    return f"no output for {for_s:.0f} s (--silence-timeout {limit_s:g})"


def uninterruptible(for_s: float) -> str:
    return f"in uninterruptible sleep for {for_s:g} s (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT)"


def no_line(pattern: str, for_s: float, limit_s: float) -> str:
    return f"no line with {pattern!r} for {for_s:.0f} s (--log-rule, {limit_s:g} s)"


def wrote_line(line: str) -> str:
    return f"it wrote {line!r}"


def wrote_below(value: str, times: int, least: float) -> str:
    """Told of numbers beyond a limit of `--log-rule`, of so many in a row, as the next ones are."""
    return f"{_wrote(value, times)}below least={least:g} (--log-rule)"


def wrote_above(value: str, times: int, most: float) -> str:
    return f"{_wrote(value, times)}above most={most:g} (--log-rule)"


def wrote_no_number(value: str, times: int) -> str:
    return f"{_wrote(value, times)}no number (--log-rule)"


def _wrote(value: str, times: int) -> str:
    return f"it wrote {value}, {f'{times} times in a row, ' if times > 1 else ''}"
