"""The flags about output."""

from node_agent.cli.arguments import Asked
from node_agent.config import UsageError
from node_agent.core.log_options import NO_FILES, LogOptions, Std
from node_agent.output.folder import trouble_with


def log_options(asked: Asked) -> LogOptions:
    """The flags about output, checked. Raises `UsageError`."""
    plugin = asked["logs_specs"]
    if plugin is not None:
        _check_plugin(plugin, asked.source("logs_specs"))
    return LogOptions(
        log_dir=_log_dir(asked),
        redirects=_or_none(asked["redirects"]),
        tee=_or_none(asked["tee"]),
        local_ranks=asked["local_ranks_filter"],
        ranks=asked["ranks_filter"],
        stdout_filters=asked["duplicate_stdout_filters"],
        stderr_filters=asked["duplicate_stderr_filters"],
        prefix=asked["log_prefix"],
        plugin=plugin,
    )


def _or_none(streams: Std | dict[int, Std] | None) -> Std | dict[int, Std]:
    return Std.NONE if streams is None else streams


def _log_dir(asked: Asked) -> str | None:
    """The folder, which is made, unless a plug-in is to know what it means."""
    folder: str | None = asked["log_dir"] or None
    if folder is None or asked["logs_specs"] is not None:
        return folder
    if folder == NO_FILES:
        _check_filters(asked)
    elif trouble := trouble_with(folder):
        raise UsageError(f"{asked.source('log_dir')}: {trouble}: name a folder, or {NO_FILES} for no files")
    return folder


def _check_filters(asked: Asked) -> None:
    """They need a file."""
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        if asked[name]:
            raise UsageError(f"{asked.source(name)} copies lines to a file, and --log-dir {NO_FILES} means no files")


def _check_plugin(name: str, source: str) -> None:
    from importlib.metadata import entry_points

    known = sorted(point.name for point in entry_points(group="torchrun.logs_specs"))
    if name not in known:
        there = f"there are {', '.join(known)}" if known else "none is installed"
        raise UsageError(f"{source}: there is no torchrun.logs_specs entry point {name!r}; {there}")
