"""`GET /v1/nodes/costs` and the page of a node: what it has cost the runs that the caller may see."""

import json
from typing import Any

from rdzv_protocol import paths
from rdzv_protocol.actions import ACTIONS
from rdzv_protocol.messages import ReportRequest

from rdzv_server.auth.authorization import Role, Token
from rdzv_server.words import costs as words
from tests.support.scenario import Connection, a_failure, a_join, settings_of
from tests.unit.rdzv_server.http.test_events_endpoint import Site, serving

NODE = "n<b>/1"


async def fails_in(site: Site, run_id: str) -> None:
    """Start a run on the node and have its worker fail."""
    settings, connection = settings_of("1", max_restarts=3), Connection(run_id)
    join = a_join(run_id, run_id=run_id, node=NODE, settings=settings, explicit_run_id=True)
    await site.server.rendezvous.ask(join, connection)
    failed = ReportRequest(run_id=run_id, agent_id=run_id, round=1, failure=a_failure(NODE))
    await site.server.rendezvous.ask(failed, connection)


async def costs(site: Site, token: str, node_id: str = NODE) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    async with site.session.get(paths.NODE_COSTS, params={"node_id": node_id}, headers=headers) as answer:
        return json.loads(await answer.read())


async def action_costs(site: Site, **query: str) -> tuple[int, Any]:
    async with site.session.get(paths.COSTS, params=query, headers={"Authorization": "Bearer all"}) as answer:
        return answer.status, json.loads(await answer.read())


async def page(site: Site, token: str, path: str) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/html"}
    async with site.session.get(path, headers=headers, allow_redirects=False) as answer:
        return answer.status, await answer.text()


async def test_a_token_for_some_runs_reads_only_a_nodes_costs_for_these_runs() -> None:
    async with serving(Token(Role.AGENT, b"mine", "mine-*"), Token(Role.READ, b"all")) as site:
        for run_id in ("mine-1", "yours-1"):
            await fails_in(site, run_id)
        every = await costs(site, "all")
        assert [(each["run_id"], each["failures"]) for each in every["runs"]] == [("yours-1", 1), ("mine-1", 1)]
        assert {each["run_id"] for each in every["incidents"]} == {"mine-1", "yours-1"}
        mine = await costs(site, "mine")
        assert [each["run_id"] for each in mine["runs"]] == ["mine-1"]
        assert sorted((each["fault"], each["run_id"]) for each in mine["incidents"]) == [
            ("failed", ""), ("failed", "mine-1")
        ]  # fmt: skip
        assert "yours" not in json.dumps(mine)
        assert (await costs(site, "all", "another"))["runs"] == []


async def test_the_cost_of_an_unknown_action_is_refused_with_the_known_ones() -> None:
    async with serving(Token(Role.READ, b"all")) as site:
        await fails_in(site, "r1")
        for query in ({"action": "bogus", "run_id": "r1"}, {"run_id": "r1"}):
            status, refusal = await action_costs(site, **query)
            known = [action.name for action in ACTIONS]
            assert (status, refusal["message"]) == (400, words.unknown_action(query.get("action", ""), known))
        assert await action_costs(site, action="uncordon", node_id=NODE) == (200, {"sentence": "", "is_high": False})


async def test_the_page_of_a_node_asks_for_a_login_and_shows_names_as_text() -> None:
    async with serving(Token(Role.AGENT, b"mine", "mine-*"), Token(Role.READ, b"all")) as site:
        await fails_in(site, "yours-1")
        status, text = await page(site, "all", "/nodes/n%3Cb%3E%2F1")
        assert (status, "Node n&lt;b&gt;/1" in text, 'href="/runs/yours-1"' in text) == (200, True, True)
        assert "yours-1" not in (await page(site, "mine", "/nodes/n%3Cb%3E%2F1"))[1]
        assert (await page(site, "all", "/nodes/?node_id=.."))[0] == 200
        assert (await page(site, "all", "/nodes/"))[0] == 303
        async with site.session.get("/nodes/n1", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/login?to=%2Fnodes%2Fn1")
