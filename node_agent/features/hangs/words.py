"""Messages about workers that may hang, and about the flags of hang detection."""

from collections.abc import Sequence

from rdzv_protocol.text import ranks as ranks_as_text


def may_hang(ranks: Sequence[int], reason: str) -> str:
    return f"{ranks_as_text(sorted(ranks))} may hang: {reason}"


def no_longer_hung(source: str) -> str:
    """For a source that no longer suspects a hang."""
    return f"the workers no longer look hung ({source})"


def node_is_silent(reason: str) -> str:
    """For one of several nodes, as the run only hangs if all of them are silent."""
    return f"the workers of this node are silent; this is a hang only if all nodes are silent: {reason}"


def node_reports_nothing(reason: str) -> str:
    """For one of several nodes, as a script may report progress from some ranks only."""
    return f"the workers of this node report no progress; this is a hang only if no other node reports any: {reason}"


def unwatched(ranks: Sequence[int]) -> str:
    who = f"{ranks_as_text(ranks)} report{'s' * (len(ranks) == 1)}"
    return f"{who} no progress, but other workers do: --progress-timeout watches only the ranks that report it"


def may_hang_before_start(reason: str) -> str:
    """For a node that prepares its workers. `reason`: message `prepares`."""
    return f"possible hang: {reason}"


NODE_WRITES_AGAIN = "the workers of this node write again"


def work_is_done(line: str) -> str:
    """For a line that a `stop` rule matches."""
    return f"a worker reports that all work is done ({line!r}): --log-rule expects no more lines"


def detects_no_hangs(flags: Sequence[str]) -> str:
    """`flags`: the given flags that say what follows a hang."""
    have = "has an effect" if len(flags) == 1 else "have an effect"
    return (
        f"{' and '.join(flags)} {have} only with hang detection, which is off on this node: turn it on with "
        "--progress-timeout, --silence-timeout or --log-rule"
    )


def not_progress_limits(given: str) -> str:
    """For a wrong value of `--progress-timeout`."""
    return f"expected auto, a number of seconds, or start=S,step=S,checkpoint=S,unseen=S,factor=F, not {given!r:.60}"


def no_proc(source: str) -> str:
    return (
        f"{source}: there is no /proc here, so workers cannot report progress and would look hung: mount it (mount -t "
        "proc proc /proc), or leave the flag out"
    )


def not_a_rule(line: str) -> str:
    """For a wrong value of `--log-rule`, like the next ones."""
    return f"expected HOW: PATTERN, such as 'every=60: step [0-9]+', not {line!r:.80}"


def no_pattern(line: str, how: str) -> str:
    return f"{line!r:.80} has no pattern: add one after a colon, such as '{how:.40}: loss ([0-9.]+)'"


def not_a_part_of_a_rule(part: str) -> str:
    return (
        "expected first=S, every=S, rank=R, least=X, most=X, points=N, fault or stop before the colon, not "
        f"{part!r:.60}"
    )


def bad_value_in_rule(key: str, line: str, why: str) -> str:
    return f"{key} of {line!r:.80}: {why}"


LINES_LEFT_OUT = "--log-rule: workers write faster than the agent can match the patterns; it skips some lines"


def pattern_too_slow(pattern: str, limit_s: float) -> str:
    took = f"matching one line took longer than {limit_s:g} s; nested repeats such as (a+)+ can take forever"
    return f"--log-rule {pattern} is now off: {took}"


PROCESS_REPLACED = "--log-rule: the process that matches the patterns was killed; starting another one"


def rules_given_up(why: str) -> str:
    return f"--log-rule is now off: {why}"


def starts_later(why: str, again_s: float) -> str:
    return f"--log-rule finds nothing for now: {why}; trying again every {again_s:g} s"


MATCHES_AGAIN = "--log-rule: the process that matches the patterns runs now"


def no_process(why: str) -> str:
    """A reason for `rules_given_up`, like the next one, or for `starts_later`."""
    return f"could not start a process to match the patterns: {why}"


def process_ended(exit_code: int | None) -> str:
    return f"the process that matches the patterns ended with exit code {exit_code}"


# Reasons for a suspicion.


def no_first_progress(for_s: float, limit_s: float) -> str:
    return f"no progress in the first {for_s:.0f} s (limit {limit_s:.0f} s)"


def no_progress(for_s: float, limit_s: float, step: int | None) -> str:
    at = "" if step is None else f" at step {step}"
    return f"no progress for {for_s:.0f} s{at} (limit {limit_s:.0f} s)"


def prepares(node_id: str, what: str, for_s: float, limit_s: float, flag: str) -> str:
    """For a node without workers. `what`: what it waits for, empty if unknown. `flag`: the flag that sets the limit."""
    now = f": {what}" if what else ""
    return f"node {node_id} has not started its workers after {for_s:.0f} s{now} (limit {limit_s:.0f} s, {flag})"


def no_output(for_s: float, limit_s: float) -> str:
    return f"no output for {for_s:.0f} s (--silence-timeout {limit_s:g})"


def uninterruptible(for_s: float) -> str:
    return f"in uninterruptible sleep for {for_s:g} s (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT)"


def no_line(pattern: str, for_s: float, limit_s: float) -> str:
    return f"no line with {pattern!r} for {for_s:.0f} s (--log-rule, {limit_s:g} s)"


def wrote_line(line: str) -> str:
    return f"it wrote {line!r}"


def wrote_below(value: str, times: int, least: float) -> str:
    """For numbers beyond a limit of `--log-rule`, `times` in a row, like the next ones."""
    return f"{_wrote(value, times)}below least={least:g} (--log-rule)"


def wrote_above(value: str, times: int, most: float) -> str:
    return f"{_wrote(value, times)}above most={most:g} (--log-rule)"


def wrote_no_number(value: str, times: int) -> str:
    return f"{_wrote(value, times)}not a number (--log-rule)"


def _wrote(value: str, times: int) -> str:
    return f"it wrote {value}, {f'{times} times in a row, ' if times > 1 else ''}"
