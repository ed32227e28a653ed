"""Lines about a server, a run, an event, a failure, or a worker and its output."""

from collections.abc import Iterable, Sequence
from time import localtime, strftime
from typing import NamedTuple

from rdzv_protocol.text import printable

from rdzvctl import words
from rdzvctl.answers import Fields
from rdzvctl.views import state

EVIDENCE_LINES = 12
"""Number of last lines of a failure's evidence that are shown."""


def of_servers(servers: Iterable[Fields]) -> list[str]:
    """Return a line for each server: address, whether it can decide, its leader; then a line for each cordoned node."""
    known = [*servers]
    cordons = sorted(state.cordons(known).items())
    kept_out = [words.servers.kept_out(node_id, state.cordon(cordon)) for node_id, cordon in cordons]
    return [*map(printable, [*map(_server, known), *kept_out])]


def _server(server: Fields) -> str:
    told = words.servers
    is_ready = told.READY if server["ready"] else told.not_ready(server["unhealthy_reason"] or "")
    role = ""
    if len(server["shards"]) > 1:
        led = [shard["shard"] for shard in server["shards"] if shard["leader"] == server["address"]]
        role = told.leads_shards(led)
    elif server["shards"]:
        follows = told.follows(server["leader"]) if server["leader"] else told.NONE_LEADS
        role = told.LEADS if server["leads"] else follows
    return told.server(server["version"], server["address"], is_ready, role, server["uptime_s"])


def of_run(run: Fields) -> str:
    """Return the run's state in one line."""
    told = (words.runs.ended if state.is_over(run) else words.runs.state)(
        run["phase"], state.since_s(run), state.reason(run)
    )
    trouble = "" if run["phase"] == "unhealthy" else state.trouble(run)
    return printable(words.runs.one_line(run["run_id"], told, trouble))


def of_event(event: Fields) -> str:
    """Return the event in one line, in the words of the server's log."""
    at = strftime("%Y-%m-%d %H:%M:%S", localtime(event["at"])) if event["at"] else "-"
    sentence = _event_sentence(event)
    return printable(words.events.event(at, event["number"], event["attempt"], event["round"], sentence))


def _event_sentence(event: Fields) -> str:
    from rdzv_protocol.codec import convert
    from rdzv_protocol.errors import MalformedMessage
    from rdzv_protocol.events import RunEvent

    try:
        return convert(RunEvent, event).sentence
    except MalformedMessage:  # a newer server has kinds that this program does not know
        return words.events.of_unknown_kind(event["kind"], event["reason"], event["by"])


def of_failure(failure: Fields) -> str:
    """Return the failure in one line, as in every log and on every console."""
    from rdzv_protocol.words.run import worker_failed

    fields = failure["node_id"], failure["rank"], failure["cause"], failure["error"]
    return worker_failed(*fields, singled_out=failure["singled_out"])


def evidence(failure: Fields) -> list[str]:
    """Return the last lines that the failed worker left: its traceback, else its stderr."""
    lines = failure["traceback"] or failure["stderr_tail"]
    return [printable(line) for text in lines for line in text.splitlines()][-EVIDENCE_LINES:]


class Worker(NamedTuple):
    """Place of a worker and of its output."""

    run_id: str
    rank: int
    local_rank: int
    node_id: str
    addr: str
    path: str
    """Folder of its log files on that node; empty if there are none."""


def worker(run: Fields, rank: int) -> Worker | None:
    """Return the worker of this rank in the last round that had workers; None if no present node had it."""
    for node in run["nodes"]:
        if _has(node["ranks"], rank):
            local_rank = rank - node["ranks"][0]
            path = _path(run, node["log_dir"], local_rank)
            return Worker(run["run_id"], rank, local_rank, node["node_id"], node["addr"], path)
    return None


def gone_worker(run: Fields, rank: int) -> list[str]:
    """Return sentences about the worker of this rank in the last round that had workers, whose node is gone.

    The last one says where its output is. Empty if no such node had the rank, or if the server does not know.
    """
    for gone in run["departures"]:
        if _has(gone["had_ranks"], rank):
            told, path = words.logs, _path(run, gone["log_dir"], rank - gone["had_ranks"][0])
            left = told.was_on(run["run_id"], rank, gone["node_id"], gone["age_s"], gone["cause"])
            return [printable(left), printable(told.in_folder(path)) if path else told.ITS_CONSOLE]
    return []


def _has(ranks: Sequence[int], rank: int) -> bool:
    return bool(ranks) and ranks[0] <= rank <= ranks[1]


def _path(run: Fields, log_dir: str, local_rank: int) -> str:
    """Return the folder with the log files of a worker of the last round that had workers; empty if there are none."""
    return f"{log_dir}/attempt_{run['workers_round'] - 1}/{local_rank}" if log_dir else ""


def may_have_had(run: Fields, rank: int) -> list[Fields]:
    """Return the departures of nodes that may have had this rank, which no present node has.

    Nodes have ranks in the order of their group ranks. If no node has left the last round that had workers, earlier
    rounds may have had more ranks.
    """
    there = [node for node in run["nodes"] if node["ranks"] and node["group_rank"] is not None]
    lowest = max((node["group_rank"] for node in there if node["ranks"][1] < rank), default=-1)
    above = [node["group_rank"] for node in there if node["ranks"][0] > rank]
    gone = [each for each in run["departures"] if each["group_rank"] is not None]
    last = [each for each in gone if each["round"] == run["workers_round"]]
    if not last:
        return gone
    return [each for each in last if lowest < each["group_rank"] < min(above, default=each["group_rank"] + 1)]


def of_worker(place: Worker) -> str:
    return printable(words.logs.place(place.run_id, place.rank, place.local_rank, place.node_id, place.addr))


def of_log(place: Worker, log: Fields | None) -> str:
    """Return the sentence about where the worker's output is: the file that the agent has read, else the announced
    folder."""
    if log:
        return printable(words.logs.from_file(log["stream"], log["round"], log["path"]))
    return printable(words.logs.in_folder(place.path)) if place.path else words.logs.NO_FILES


def of_stack_files(found: Fields) -> str:
    """Return the sentence about where the files of an examination of workers are."""
    if not found["folder"]:
        return words.logs.NO_STACK_FILES
    return printable(words.logs.stack_files(found["folder"], found["node_id"]))


def of_text(text: str) -> list[str]:
    """Return lines of a log as they would look on a screen, printable.

    Of a progress bar, only the last state is left.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    return [printable(line.rstrip("\r").rpartition("\r")[2].expandtabs()) for line in lines]
