"""Phases and states of health are declared once, and each place that lists them has all of them."""

import re
from pathlib import Path
from typing import get_args

from rdzv_protocol.states import ENDS, HEALTH, PHASES, Health

from node_agent import supervisor
from rdzv_server.core.kernel.run import Stage
from rdzv_server.http.page import PHASES_BY_NEED
from rdzvctl.views.tables import STYLES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "rdzv_server" / "web" / "static" / "page.js").read_text()


def test_the_stages_of_the_kernel_are_phases_with_the_same_ends() -> None:
    assert {stage.value for stage in Stage} <= set(PHASES)
    assert {stage.value for stage in Stage if stage.is_end} == set(ENDS) == supervisor.ENDS.keys()


def test_rdzvctl_has_a_colour_for_each_phase_and_each_trouble() -> None:
    words = [state.partition("_")[0] for state in (*PHASES, *HEALTH) if state not in ("below_size", "ok")]
    assert [word for word in words if word not in STYLES] == []


def test_the_page_orders_all_phases_and_colours_them() -> None:
    assert sorted(PHASES_BY_NEED) == sorted(PHASES)
    (tones,) = re.findall(r"(?ms)^const TONES = \{(.*?)^\}", PAGE)
    assert [phase for phase in PHASES if not re.search(rf"\b{phase}:", tones)] == []


def test_the_reference_has_each_state_of_health_in_order_and_the_scheduler_page_each_phase() -> None:
    health = (ROOT / "docs" / "reference" / "health.md").read_text()
    assert tuple(re.findall(r"(?m)^\| `(\w+)` \|", health)) == get_args(Health) == HEALTH
    (row,) = re.findall(
        r"(?m)^\| `rdzv-server/phase` \|.*", (ROOT / "docs/how-to/show-in-the-scheduler.md").read_text()
    )
    assert sorted(re.findall(r"`(\w+)`", row)) == sorted(PHASES)
