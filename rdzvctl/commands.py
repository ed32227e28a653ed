"""Commands of `rdzvctl` that ask servers: each shows their answer."""

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rdzv_protocol import paths
from rdzv_protocol.flag_values import LOG_LINES, LOG_STREAMS, MOST_LOG_LINES, LogStream
from rdzv_protocol.shell import quoted
from rdzv_protocol.text import clip, printable

from rdzvctl import words
from rdzvctl.answers import Fields
from rdzvctl.client import Overview, Request
from rdzvctl.errors import BadInput, KeptOut, Refused, Unreachable
from rdzvctl.output import Output, confirmed
from rdzvctl.session import Session
from rdzvctl.views import explanation, lines, next_steps, state, tables
from rdzvctl.views.next_steps import MOST_NAMED

if TYPE_CHECKING:
    from rdzv_protocol.actions import Action

MOST_EVENTS = 100
"""Default of `--last`: number of events that are shown."""
FOLLOW_S = 1.0
"""Seconds between two reads of a log that is followed."""
MOST_NEEDY = 10
"""Most active runs that `why` describes on a terminal; the worst come first, and would scroll away."""
HEADING_LINES = 2
"""Lines of a table on a terminal above its first row."""
LATEST = 1_000
"""Number of latest events that are searched for the last opening of a round."""
MOST_REASON_BYTES = 1_000


# Questions.


def status(session: Session) -> None:
    """Show the servers and their runs, or all details of one run."""
    if session.given.get("watch"):
        return _watch_status(session)
    if session.names_one_run:
        run = session.run()
        return session.out.json(run) if session.out.is_json else _show_run(session, run)
    found = session.overview(asks_all=True)
    if session.out.is_json:
        return session.out.json({"servers": found.servers, "runs": _wanted(session, found.runs)})
    return _show_overview(session, found)


def _wanted(session: Session, runs: Sequence[Fields]) -> list[Fields]:
    """Return the requested ones of the runs."""
    wanted = session.wanted
    return [run for run in runs if wanted.covers(run)]


def _watch_status(session: Session) -> None:
    """Show the status after each change, forever: on a terminal as a screen, otherwise a line for each changed run."""
    out, run_id = session.out, session.given.get("run_id") if session.names_one_run else None
    if run_id is not None:
        session.run()
    changes = session.changes(run_id)
    if out.can_redraw and not out.is_json:
        with out.screen():
            for found in changes:
                out.show(partial(_show_watched, session, found))
    out.end_with_reader()
    seen, shown_problems = dict[str, Fields](), list[str]()
    for found in changes:
        if (problems := [*found.unknown, *found.silent]) != shown_problems:
            for text in problems or [words.servers.ANSWER_AGAIN]:
                out.note(text)
            shown_problems = problems
        for run in found.runs if run_id is not None else _wanted(session, found.runs):
            before, seen[run["run_id"]] = seen.get(run["run_id"]), state.without_times(run)
            if before != seen[run["run_id"]]:
                if out.is_json:
                    out.json(run, in_one_line=True)
                else:
                    out.line(f"{time.strftime('%H:%M:%S')} {lines.of_run(run)}", at_once=True)


def _show_watched(session: Session, found: Overview) -> None:
    for text in [*found.unknown, *found.silent]:
        session.out.paragraph(text)
    if not session.names_one_run:
        return _show_overview(session, found)
    for run in found.runs:
        _show_run(session, run)
    return None


def _show_overview(session: Session, found: Overview) -> None:
    for line in lines.of_servers(found.servers):
        session.out.line(line)
    session.out.line()
    _show_runs(session, found.runs)


def runs(session: Session) -> None:
    found = session.overview().runs
    return session.out.json(_wanted(session, found)) if session.out.is_json else _show_runs(session, found)


def _show_runs(session: Session, known: Sequence[Fields]) -> None:
    out, found = session.out, _wanted(session, known)
    if not known and session.lacks_runs:
        return
    if not found:
        out.line(words.runs.none_matches(len(known)) if known else words.runs.no_runs(session.endpoint))
    elif out.room is None:
        out.table(tables.runs_table(found))
    else:
        _show_as_many(session, state.first_to_see(found), out.room - HEADING_LINES)


def _show_as_many(session: Session, found: Sequence[Fields], room: int) -> None:
    """Show as many runs as the screen has lines for, and how many do not fit."""
    out = session.out
    drawn, most = out.drawn(tables.rows_of_runs(found)), len(found)
    if drawn.count("\n") >= room + HEADING_LINES:
        most = most if most <= room else max(1, room - 1)
        drawn = out.drawn(tables.rows_of_runs(found[:most]), is_flat=True)
    out.line(drawn)
    if left := found[most:]:
        more = words.runs.more_runs(len(left), state.phases(left))
        out.line(next_steps.with_flags(more, session.program))


def nodes(session: Session) -> None:
    run = session.run()
    if session.out.is_json:
        return session.out.json(run["nodes"])
    return session.out.table(tables.nodes_table(run))


def _show_run(session: Session, run: Fields) -> None:
    _show_why(session, run)
    if spent := explanation.time_line(run):
        session.out.paragraph(spent)
    if took := explanation.restarts_line(run):
        session.out.paragraph(took)
    session.out.line()
    session.out.table(tables.nodes_table(run))
    if run["history"]:
        session.out.line()
        session.out.table(tables.restarts_table(run))


def why(session: Session) -> None:
    """Show why a run is in its current state or, if there are several runs, which ones need a person.

    If the run was not named, show the other runs that have failed recently, too.
    """
    runs = list[Fields]()
    if session.given.get("run_id") is None:
        runs = session.overview().runs
        if len([run for run in runs if not state.is_over(run)] or runs) > 1:
            return _show_troubles(session, runs)
    run = session.run()
    others = [each for each in runs if each["run_id"] != run["run_id"]]
    if session.out.is_json:
        found = _why(session, run)
        failed = [_in_short(each) for each in explanation.failed_runs(others)]
        shown = {"run_id": run["run_id"], "phase": run["phase"], **found._asdict(), "failed_runs": failed}
        return session.out.json(shown)
    _show_why(session, run)
    for line in explanation.failures(others, session.for_views):
        session.out.step(line)
    return None


def _show_troubles(session: Session, runs: Sequence[Fields]) -> None:
    if session.out.is_json:
        return session.out.json({"runs": [_in_short(run) for run in runs]})
    most = MOST_NEEDY if session.out.is_terminal else None
    found = explanation.troubles(runs, session.for_views, most=most)
    for line in [session.unhealthy_reason, *found]:
        if line:
            session.out.step(line)
    return None


def _in_short(run: Fields) -> dict[str, Any]:
    return {name: run[name] for name in ("run_id", "phase", "reason", "health")}


def _why(session: Session, run: Fields) -> explanation.Why:
    """Return the explanation of the run.

    Only its events have the reason of a restart and the failure of the attempt before, and only a leader has the
    events.
    """
    explain = partial(explanation.why, run, session.for_views)
    has_earlier = run["attempt"] > 1 and not session.given.get("watch")
    if session.unhealthy_reason or session.lacks_runs or not (run["phase"] == "restarting" or has_earlier):
        return explain()
    events, attempt = session.client.latest_events(run["run_id"], LATEST).events, run["attempt"]
    opened, failed = "", ""
    for event in events:
        if event["kind"] == "round_opened" and run["phase"] == "restarting":
            opened = event["reason"]
        if event["kind"] == "run_failed" and event["attempt"] == attempt - 1:
            failed = words.explanation.earlier_failed(event["attempt"], event["reason"])
    return explain(opened=opened, earlier=failed)


def _show_why(session: Session, run: Fields) -> None:
    out, found = session.out, _why(session, run)
    out.paragraph(found.text)
    for line in found.evidence:
        out.line(f"    {line}")
    for step in found.next:
        out.step(words.runs.next_step(step))


def events(session: Session) -> None:
    """Show the latest events of a run and, with `--follow`, new ones."""
    run_id, out = session.run()["run_id"], session.out
    most = session.given.get("last", MOST_EVENTS)
    found = session.client.latest_events(run_id, most)
    if len(found.events) < found.last and not out.is_json:
        out.note(words.events.some_events(len(found.events), found.last))
    for event in found.events:
        _show_event(out, event)
    if session.given.get("follow"):
        out.end_with_reader()
        for event in session.client.follow_events(run_id, found.last, out.note):
            _show_event(out, event)


def timeline(session: Session) -> None:
    """Show a run over time: what its time went into, its pace, and what happened when."""
    from rdzvctl import timeline as drawing  # and no other command needs it

    run_id, out = session.run(is_over=False)["run_id"], session.out
    found = session.client.timeline(run_id)
    if out.is_json:
        return out.json(found)
    end = found["ended_at"] or found["now"]
    out.paragraph(words.events.over_time(printable(run_id), found["attempt"], drawing.stamp(found["created_at"]),
                                          drawing.stamp(end), end - found["created_at"]))  # fmt: skip
    out.line()
    for line in drawing.lines(found, out.size().columns, is_plain=not out.has_blocks):
        out.line(line)
    if found["marks"]:
        out.line()
        out.table(drawing.events_table(found["marks"]))
    return None


def _show_event(out: Output, event: Fields) -> None:
    if out.is_json:
        out.json(event, in_one_line=True)
    else:
        out.line(lines.of_event(event), at_once=True)


def logs(session: Session) -> None:
    """Show where a worker's output is, and its end if the worker's agent allows that.

    Fails if lines were requested and cannot be read, but not if only the place was requested.
    """
    run, out, given = session.run(), session.out, session.given
    if given["rank"] is None:
        message = next_steps.with_flags(words.logs.needs_rank(run["run_id"]), session.program)
        raise BadInput(message, words.logs.ranks(run["run_id"], _highest_rank(run)))
    place = _place_of(run, given["rank"])
    wants_lines = not {"lines", "stream", "follow"}.isdisjoint(given)
    found, refusal = list[Fields](), ""
    if wants_lines or (place.path and not state.is_over(run)):
        try:
            found = _read_logs(session, place)
        except (Refused, KeptOut) as error:
            if wants_lines:
                raise
            refusal = str(error)
    if out.is_json:
        answer = {"logs": found} if found else {"refusal": refusal}
        out.json({**place._asdict(), **answer}, in_one_line=bool(given.get("follow")))
    else:
        (out.note if found else out.line)(lines.of_worker(place))
        if not found:
            out.line(lines.of_log(place, None))
        if refusal:
            out.paragraph(words.logs.log_not_shown(refusal))
        for log in found:
            out.note(lines.of_log(place, log))
            _show_log(out, log)
    if found and given.get("follow"):
        _follow_logs(session, place, found)


def _read_logs(session: Session, place: lines.Worker) -> list[Fields]:
    """Return the ends of the wanted logs: of one stream, or of both if they have files. Raises if there are none."""
    streams = (session.given["stream"],) if "stream" in session.given else LOG_STREAMS
    found, refused = list[Fields](), list[Refused]()
    for stream in streams:
        try:
            found.append(session.client.ask(paths.LOGS, _log_request(session, place, stream)))
        except Refused as error:
            refused.append(error)
    if not found:
        raise refused[-1]
    return found


def stacks(session: Session) -> None:
    """Show what the workers are doing: one sentence, the most important stack, and where the files with the rest
    are."""
    out, given = session.out, session.given
    wanted = {"run_id": session.run()["run_id"], "rank": given["rank"], "reason": given.get("reason", "")}
    found = session.client.ask(paths.STACKS, wanted)
    if out.is_json:
        out.json(found)
        return
    out.paragraph(words.logs.in_round(found["round"], found["sentence"]))
    for line in found["stack"]:
        out.line(printable(line))
    for problem in found["problems"]:
        out.note(printable(problem))
    out.line(lines.of_stack_files(found))


def _place_of(run: Fields, rank: int) -> lines.Worker:
    """Return the place of the worker with this rank. Raises `Refused` if no node has the rank."""
    if found := lines.worker(run, rank):
        return found
    if told_of := lines.gone_worker(run, rank):
        raise Refused(*told_of)
    told, gone = words.logs, lines.may_have_had(run, rank)
    help_lines = [
        told.gone(each["node_id"], each["round"], each["age_s"], each["cause"]) for each in gone[-MOST_NAMED:]
    ]
    help_lines += [told.LOOK_THERE] if gone else []
    raise Refused(told.no_rank(run["run_id"], rank, _highest_rank(run)), *map(printable, help_lines))


def _highest_rank(run: Fields) -> int | None:
    """Return the highest rank of the run; None if no worker has been started."""
    known = [*(node["ranks"] for node in run["nodes"]), *(gone["had_ranks"] for gone in run["departures"])]
    return max((ranks[1] for ranks in known if ranks), default=None)


def _log_request(session: Session, place: lines.Worker, stream: LogStream, **more: int) -> Request:
    given = {"stream": stream, "lines": session.given.get("lines", LOG_LINES)}
    return {"run_id": place.run_id, "rank": place.rank, **given, **more}


def _show_log(out: Output, log: Fields) -> None:
    if log["is_cut"]:
        out.note(words.logs.CUT)
    for line in lines.of_text(log["text"]):
        out.line(line, at_once=True)


def _follow_logs(session: Session, place: lines.Worker, found: list[Fields]) -> None:
    """Show what is added to the logs until the run has ended. In each later round, follow that round's worker."""
    out, shown_error, logs = session.out, "", {log["stream"]: log for log in found}
    out.end_with_reader()
    while True:
        time.sleep(FOLLOW_S)
        try:
            for stream, log in logs.items():
                new = session.client.ask(paths.LOGS, _log_request(session, place, stream, offset=log["offset"]))
                if (new["path"], new["node_id"]) != (log["path"], log["node_id"]):
                    out.note(words.logs.next_log(new["round"], new["path"], new["node_id"]))
                    new = session.client.ask(paths.LOGS, _log_request(session, place, stream, lines=MOST_LOG_LINES))
                logs[stream], shown_error = new, ""
                if new["text"]:
                    out.json(new, in_one_line=True) if out.is_json else _show_log(out, new)
        except (Refused, Unreachable) as error:
            if getattr(error, "code", "") in ("run_ended", "unknown_run"):
                return out.note(str(error))
            if str(error) != shown_error:  # between two rounds no node has the rank
                out.note(str(error))
            shown_error = str(error)


# Actions.


def act(action: "Action", session: Session) -> None:
    """Have the action carried out after the user has confirmed it. The request id makes a repetition harmless."""
    given, out = session.given, session.out
    asked = {name: given[name] for name in action.fields if name in given}
    target, shown, seen = _node_target(action, session) if action.of_node else _run_target(action, session)
    if action.question and sys.stdin.isatty() and not given.get("yes"):
        costs = _costs(action, session, target | asked)
        out.note(shown)
        if costs["sentence"]:
            out.note(words.actions.costs(printable(costs["sentence"])))
        if costs["is_high"] and not confirmed(action.question, sys.stdin):
            raise Refused(words.actions.NOT_DONE)
    body = {
        **target,
        **{name: seen[name] for name in action.fields if name in seen},
        "reason": clip(printable(given.get("reason", "")), MOST_REASON_BYTES),
        "request_id": given.get("request_id") or f"rdzvctl-{os.urandom(8).hex()}",
        **asked,
    }
    done = _asked_for(session, action, body)
    message = done.get("message", "done")
    if out.is_json:
        out.json({"action": action.name, **body, "message": message, "changed": done["changed"]})
    if not done["changed"]:
        raise Refused(words.actions.idle(printable(message)))
    if out.is_json:
        return
    kind, name = next(iter(target.items()))
    named = (words.actions.named_node if kind == "node_id" else words.actions.named_run)(name)
    out.line(printable(words.actions.done(named, message)))
    if action.undone_by:
        undo = f"{session.program} {action.undone_by} {quoted(name)}"
        out.line(words.actions.stays_cordoned(printable(name), undo, given.get("for_s")))


def _asked_for(session: Session, action: "Action", body: Request) -> Fields:
    """Have the action carried out. Raises `Unreachable` if it was not, or if that is unknown.

    The error names the reason if a server leads but can decide nothing.
    """
    if reason := session.unhealthy_reason:
        session.out.note(reason)
    told = words.actions
    try:
        return session.client.ask(action.path, body)
    except Unreachable as error:
        outage = state.unhealthy_reason(session.client.outages())
        if not error.is_sent:
            help_lines = (told.WHEN_IT_CAN,) if outage else error.help_lines
            raise Unreachable(told.refused(outage or str(error)), *help_lines) from None
        again = told.ask_again(quoted(str(body["request_id"])))
        help_lines = (told.MAY_BE_DONE_LATER,) if outage else error.help_lines
        raise Unreachable(told.outcome_unknown(outage or str(error)), *help_lines, again) from None


def _costs(action: "Action", session: Session, wanted: Request) -> Fields:
    """Return what the action would cost; unknown from an older server. `wanted`: its target and the fields given."""
    try:
        return session.client.costs(action.name, wanted)
    except Refused:
        return Fields(sentence="", is_high=True)


def _run_target(action: "Action", session: Session) -> tuple[Request, str, Request]:
    """Return the run, its state as text, and the round that the person sees.

    A repetition, with a request id and a run, does not check the state.
    """
    given = session.given
    if "request_id" in given and given.get("run_id") is not None:
        return {"run_id": given["run_id"]}, words.actions.named_run(given["run_id"]), {}
    run = session.run(is_over=action.of_ended, needs_all=True)
    if not (run["can_be_forgotten"] if action.of_ended else not state.is_over(run)):
        advice = next_steps.with_flags(words.actions.stop_first(run["run_id"]), session.program)
        raise Refused(
            words.actions.nothing_to_do(action.name, lines.of_run(run)), *((advice,) if action.of_ended else ())
        )
    return {"run_id": run["run_id"]}, lines.of_run(run), {"round": run["round"]}


def _node_target(action: "Action", session: Session) -> tuple[Request, str, Request]:
    """Return the node, what runs there now, and nothing. For a node that no run has, a similar name is suggested."""
    node_id = session.given["node_id"]
    if action.of_absent:
        return {"node_id": node_id}, words.actions.named_node(node_id), {}
    all_runs = [run for run in session.overview().runs if not state.is_over(run)]
    there = [(run, node) for run in all_runs for node in run["nodes"] if node["node_id"] == node_id]
    if there:
        states = [(str(node["state"]), str(run["run_id"])) for run, node in there[:MOST_NAMED]]
        return {"node_id": node_id}, words.actions.node_in_runs(node_id, states), {}
    known = sorted({node["node_id"] for run in all_runs for node in run["nodes"]})
    if not session.lacks_runs:
        session.out.note(words.actions.no_run_has(node_id, known))
    return {"node_id": node_id}, words.actions.in_no_run(node_id), {}
