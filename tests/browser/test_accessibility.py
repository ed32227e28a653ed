"""Every page in both colour schemes: axe-core finds nothing. SCREENSHOTS=docs/images updates the docs' pictures."""

import pytest
from rdzv_protocol import actions

from node_agent import words
from tests.browser.conftest import DESKTOP, PHONE, NewTab
from tests.browser.crowd import Crowd
from tests.integration.test_actions import act
from tests.support.cluster import Cluster

TRACEBACK = (
    "Traceback (most recent call last):", '  File "/home/ada/train.py", line 212, in train_step',
    "    loss = model(batch.to(device)).loss", '  File "/home/ada/model.py", line 88, in forward',
    "    hidden = self.attention(hidden, mask)",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.11 GiB",
)  # fmt: skip
EVIDENCE = {
    "error": TRACEBACK[-1], "traceback": TRACEBACK,
    "hint": words.hints.GPU_MEMORY_FULL,
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_passes_the_accessibility_checks(cluster: Cluster, new_tab: NewTab, scheme: str) -> None:
    tab = await new_tab(color_scheme=scheme)
    async with Crowd(cluster.server.port) as crowd:
        names = [f"gpu-{number:02}" for number in range(66)]
        nodes = await crowd.run("pretrain-7b", names, seats=64, max_restarts=3)
        await crowd.fail("pretrain-7b", at=17, **EVIDENCE)
        await crowd.run("eval/checkpoint-4000", ["cpu-0"])
        await crowd.run("finetune", ["gpu-a", "gpu-b"])
        await crowd.fail("finetune", at=1, **EVIDENCE)
        await tab.open(cluster)
        await tab.shows("#counts", "1 failed")
        await tab.shows("#counts", "2 running")
        await tab.is_accessible()
        await tab.picture(f"page-runs-{scheme}")
        assert (await act(cluster.server, actions.CORDON, node_id="gpu-c", reason="its fan"))[0] == 200
        await tab.page.get_by_role("button", name="Uncordon node gpu-c").click()
        await tab.is_accessible()
        await tab.page.keyboard.press("Escape")

        await tab.open(cluster, "/runs/pretrain-7b")
        await tab.counts(".node", 66)
        await tab.shows("#states-legend", "2 standby")
        await nodes[40].gone()
        await tab.shows("#reason", "round 3 runs on 64 nodes")
        await tab.shows("#events", "node gpu-40 lost")
        await tab.is_accessible()
        await tab.page.set_viewport_size({"width": 1200, "height": 1420})
        await tab.picture(f"page-run-{scheme}")
        await tab.page.set_viewport_size(DESKTOP)
        await tab.page.click(".node >> nth=5")
        await tab.page.click("text=Stop run")
        await tab.is_accessible()
        await tab.picture(f"page-action-{scheme}")
        await tab.page.keyboard.press("Escape")

        for path in ("/?plain=0", "/runs/pretrain-7b?plain=0"):
            await tab.go(f"http://{cluster.endpoint}{path}")
            await tab.is_accessible()

        await tab.open(cluster, "/runs/finetune")
        await tab.tone("#phase", "bad")
        await tab.is_accessible()
        await tab.picture(f"page-failed-{scheme}", full=True)
        await tab.page.set_viewport_size(PHONE)
        await tab.is_accessible()
        await tab.picture(f"page-phone-{scheme}")
    await tab.open(cluster, "/runs/none%20such")
    await tab.page.wait_for_selector("#no-run:not([hidden])")
    await tab.is_accessible()
    tab.is_content()
