"""Pages without scripts, of runs that are made up."""

import asyncio
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace

from rdzv_server.core.events import EXCLUDER
from rdzv_server.server import RendezvousServer, bind
from rdzv_server.service.interface import ShardView
from rdzv_server.words import health as health_words
from tests.support.scenario import Scenario, running
from tests.support.stories import check, play

PATIENCE_S = 20.0
HTML = {"Accept": "text/html"}
FIRST, SECOND = ShardView(0, "10.0.0.1:29400", 3), ShardView(1, None, 1)
Page = Callable[..., str]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    """Return the text of a page of a server with these runs, by their ids, and with these fields of its state."""

    async def fetch(path: str, runs: dict[str, Scenario], state: dict[str, Any]) -> str:
        bound = bind("127.0.0.1", 0)
        for run_id, story in runs.items():
            story.run.run_id = run_id
        async with asyncio.timeout(PATIENCE_S), RendezvousServer() as server, ClientSession() as session:
            service, now = server.rendezvous, {run_id: story.now for run_id, story in runs.items()}
            known = replace(service.state(), **state)
            monkeypatch.setattr(service, "runs", lambda: [story.run for story in runs.values()])
            monkeypatch.setattr(service, "now", now.get)
            monkeypatch.setattr(service, "state", lambda: known)
            await server.listen(bound)
            async with session.get(f"http://127.0.0.1:{bound.getsockname()[1]}{path}?plain=0", headers=HTML) as answer:
                assert answer.status == 200
                return await answer.text()

    return lambda path, runs, **state: asyncio.run(fetch(path, runs, state))


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]+>", " ", html)).split())


def row_of(node: str, html: str) -> list[str]:
    """Return the texts of the cells in the node's row."""
    (row,) = [row for row in html.split("<tr>") if f">{node}</a></th>" in row]
    return [text_of(cell) for cell in re.findall("<t[dh].*?</t[dh]>", row)]


def test_runs_that_need_a_person_come_first(page: Page) -> None:
    hung = check(("1 on_hang=report", "join a; 60s; suspect a 0; judge; 60s"))
    stories = {
        "old": check(("1", "join a; 50s; renew a")), "young": check(("1", "join a; 5s")),
        "done": check(("1", "join a; succeed a")), "hung": hung, "failed": check(("1", "join a; fail a")),
    }  # fmt: skip
    shown = re.findall(r'href="/runs/(\w+)\?plain=0"', page("/", stories))
    assert shown == ["hung", "failed", "young", "old", "done"]


def test_a_run_that_needs_a_person_has_its_next_step_in_the_list(page: Page) -> None:
    hung = check(("1 on_hang=report", "join a; 60s; suspect a 0; judge; 60s"))
    shown = text_of(page("/", {"hung": hung, "well": check(("1", "join a; 5s"))}))
    assert shown.count(" Next: ") == 1 and f"Next: {health_words.stacks('hung')} " in shown


def test_a_run_whose_workers_report_no_progress_says_so_unless_it_has_trouble(page: Page) -> None:
    untold = health_words.no_progress_reported("r")
    assert untold in text_of(page("/runs/r", {"r": running("1", "a")}))
    told = check(("1", "join a; 5s; tell a highest_step=7 step_s=1.0"))
    hung = check(("1 on_hang=report", "join a; 60s; suspect a 0; judge; 60s"))
    for run in (told, hung):
        assert untold not in text_of(page("/runs/r", {"r": run}))


def test_an_ended_run_shows_the_time_of_its_end_instead_of_an_age(page: Page) -> None:
    ended = check(("1", "join a; 50s; renew a; succeed a; 40s"))
    shown = text_of(page("/runs/r", {"r": ended}))
    assert "Round 1, ended 40 s ago" in shown and "Round 1, for" not in shown
    assert "40 s ago" in text_of(page("/", {"r": ended}))


def test_a_silent_node_is_called_as_on_the_live_page(page: Page) -> None:
    run = running("3", *"abc", lease_s=20.0)
    run.passes(9.0)
    run.renews("b", "c")
    run.passes(3.0)
    run.disconnects("c")
    html = page("/runs/r", {"r": run})
    assert [row_of(node, html)[2] for node in "abc"] == ["running silent", "running", "running disconnected"]
    play(run, "succeed a b c")
    html = page("/runs/r", {"r": run})
    assert {row_of(node, html)[2] for node in "abc"} == {"succeeded"}


def test_an_excluded_node_is_not_called_cordoned(page: Page) -> None:
    run = running("2", *"ab")
    for node, by in {"b": EXCLUDER, "c": EXCLUDER, "d": "admin"}.items():
        run.cordons(node, by=by)
    run.join("c", "d")
    html = page("/runs/r", {"r": run})
    assert [row_of(node, html)[2] for node in "abcd"] == ["running", "running excluded", "excluded", "cordoned"]


@pytest.mark.parametrize(
    ("path", "link"), [("/", "/?plain=0"), ("/runs/r", "/runs/r?plain=0"), ("/nodes/n", "/nodes/n")]
)
def test_a_follower_names_the_leader_with_a_link(page: Page, path: str, link: str) -> None:
    html = page(path, {}, leads=False, shards=[FIRST])
    assert f'<a href="http://10.0.0.1:29400{link}">10.0.0.1:29400</a>' in html
    assert not re.search("are no runs|No run (that|has)", html), "the leader may have some"


def test_a_server_that_leads_some_runs_names_the_leaders_of_the_others(page: Page) -> None:
    html = page("/", {"r": running("1", "a")}, shards=[FIRST, SECOND])
    assert 'href="http://10.0.0.1:29400/?plain=0"' in html and "The leader is unknown (shard 1)" in text_of(html)


def test_the_leader_of_all_runs_names_itself_only_for_a_run_that_it_does_not_know(page: Page) -> None:
    runs = {"r": running("1", "a")}
    assert "10.0.0.1:29400" not in page("/", runs, shards=[FIRST]) + page("/runs/r", runs, shards=[FIRST])
    assert "10.0.0.1:29400" in page("/runs/other", runs, shards=[FIRST])
