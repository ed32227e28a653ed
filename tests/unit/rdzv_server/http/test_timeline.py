"""`GET /v1/runs/ID/timeline`: a run over time, for clients that may read the run."""

import json
from typing import Any

from rdzv_protocol import paths

from rdzv_server.auth.authorization import Role, Token
from tests.unit.rdzv_server.http.test_events_endpoint import Site, serving


async def timeline(site: Site, run_id: str, **headers: str) -> Any:
    async with site.session.get(paths.timeline_of(run_id), headers=headers) as answer:
        return answer.status, json.loads(await answer.read())


async def test_the_timeline_of_a_run_is_shown_for_any_run_id():
    async with serving() as site:
        for run_id in ("run", "a/events", "b/timeline", "c d"):
            await site.happens(2, run_id=run_id)
            status, shown = await timeline(site, run_id)
            assert (status, shown["run_id"], [each["first"] for each in shown["rounds"]]) == (200, run_id, [1])
            assert [(mark["kind"], mark["count"]) for mark in shown["marks"]] == [("node_joined", 2), ("node_left", 2)]
            assert shown["created_at"] <= shown["marks"][0]["at"] <= shown["now"]


async def test_an_unknown_run_is_refused():
    async with serving() as site:
        status, refusal = await timeline(site, "nothing")
        assert (status, refusal["code"]) == (404, "unknown_run")


async def test_a_token_for_some_runs_reads_only_their_timelines():
    async with serving(Token(Role.AGENT, b"mine", "mine-*")) as site:
        for run_id in ("mine-1", "yours-1"):
            await site.happens(run_id=run_id)
        mine = {"Authorization": "Bearer mine"}
        assert (await timeline(site, "mine-1", **mine))[0] == 200
        assert (await timeline(site, "yours-1", **mine))[1]["code"] == "forbidden"
        assert (await timeline(site, "mine-1"))[1]["code"] == "unauthorized"
