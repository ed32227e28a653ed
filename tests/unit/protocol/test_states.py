"""Phases and states of health are declared once, and each place that lists them has all of them."""

import re
from pathlib import Path
from typing import get_args

from rdzv_protocol.states import ENDS, HEALTH, PHASES, TONE_OF, TONES, Health

from node_agent import supervisor
from rdzv_server.core.kernel.run import AgentState, Stage
from rdzv_server.core.views.watch_view import Quiet
from rdzv_server.http.page import PHASES_BY_NEED

ROOT = Path(__file__).parents[3]
STYLE_SHEET = (ROOT / "rdzv_server" / "web" / "static" / "page.css").read_text()


def test_the_stages_of_the_kernel_are_phases_with_the_same_ends() -> None:
    assert {stage.value for stage in Stage} <= set(PHASES)
    assert {stage.value for stage in Stage if stage.is_end} == set(ENDS) == supervisor.ENDS.keys()


def test_each_state_has_a_tone_and_the_page_each_tone_of_a_badge_and_of_a_bar() -> None:
    states = {*PHASES, *HEALTH, *get_args(Quiet), *(str(state) for state in AgentState)} - {""}
    assert sorted(states - TONE_OF.keys()) == []
    assert [tone for tone in TONES if STYLE_SHEET.count(f"[data-tone={tone}] {{") != 2] == []


def test_the_reference_of_the_page_has_each_state_of_a_node() -> None:
    page = (ROOT / "docs" / "reference" / "page.md").read_text()
    rows = re.findall(r"(?m)^\| (`.*?`) \|", page.partition("### The nodes")[2].partition("\n### ")[0])
    told = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert {*get_args(Quiet), *(str(state) for state in AgentState)} - {""} <= told <= TONE_OF.keys()


def test_the_page_orders_all_phases() -> None:
    assert sorted(PHASES_BY_NEED) == sorted(PHASES)


def test_the_reference_has_each_state_of_health_in_order_and_the_scheduler_page_each_phase() -> None:
    health = (ROOT / "docs" / "reference" / "health.md").read_text()
    assert tuple(re.findall(r"(?m)^\| `(\w+)` \|", health)) == get_args(Health) == HEALTH
    (row,) = re.findall(
        r"(?m)^\| `rdzv-server/phase` \|.*", (ROOT / "docs/how-to/show-in-the-scheduler.md").read_text()
    )
    assert sorted(re.findall(r"`(\w+)`", row)) == sorted(PHASES)
