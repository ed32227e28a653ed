"""Notices before a round ends: which agents get one, what ends the wait, and what happens to the round."""

import pytest

from rdzv_server.words import completion, losses
from rdzv_server.words import notices as words
from tests.support.stories import check, stories, until

LEAVES = words.leaves("b", "SIGTERM")


@stories({
    # a node leaves
    "all participants get the notice, and the round ends when all have acknowledged": (
        "1:2", "join a b; announce b",
        {"notice a": "node_left b in 24 s", "notice b": "node_left b in 24 s", "woken": "a b",
         "told notice_given": words.given(LEAVES, 24)},
        "2s; acknowledge a", {"start": "a b"}, "acknowledge b",
        {"stop": "a", "drain": "b", "reason b": LEAVES, "left_s b": "28",
         "told notice_ended": words.acknowledged(2, 2)},
        "leave b; join a", {"ranks": "a", "ledger": "node_left"},
    ),
    "the deadline ends the wait for those that do not acknowledge": (
        "1:2", "join a b; announce b; acknowledge a listening=2 acknowledged=1; 23.9s", {"stage": "running"},
        "0.1s",
        {"drain": "b", "left_s b": "6", "noticed": "", "told notice_ended":
         words.not_acknowledged("a, b", 24)},
    ),
    "if no worker listens the round ends at once": (
        "1:2", "join a b; announce b; acknowledge a b listening=0 acknowledged=0",
        {"stage": "forming", "told notice_ended": words.no_worker_listens(0)},
    ),
    "and if no agent knows notices": (
        "1:2", "join a b queries=(); announce b",
        {"stage": "forming", "told notice_ended": words.no_worker_notified(0)},
    ),
    "a node that dies meanwhile ends the round without more ado": (
        "1:3", "join a b c; announce b; lose b",
        {"stop": "a c", "noticed": "", "told notice_ended": words.cut_short(losses.lost("b", losses.not_back(1)))},
        "join a c", {"ledger": "node_lost"},
    ),
    "a worker that fails meanwhile opens the round, and the leaving node goes": (
        "1:2 max_restarts=1", "join a b; announce b; fail a", {"drain": "b"},
        "join a", {"ledger": "node_left"},  # the round would have ended anyway: free
    ),
    "a second node that leaves goes with the first one": (
        "1:3", "join a b c; announce b; announce c notice_s=20; ignored announce c notice_s=5",
        {"notice a": "node_left c in 20 s"}, "20s", {"drain": "b c", "stop": "a"},
    ),
    "a node without workers goes at once": (
        "1", "join a spare; announce spare", {"drain": "spare", "start": "a", "told notice_given": ""},
    ),
    "a leave that is announced after the end changes nothing": (
        "1:2", "join a b; announce b; succeed a b; ignored announce b", {"stage": "succeeded"},
    ),
    # a restarted server
    "a restarted server asks again and keeps the deadline": (
        "1:2", "join a b; announce b; 10s; restart; renew a b", {"notice a": "node_left b in 14 s"},
        "acknowledge a b", {"drain": "b"},
    ),
    "also from a snapshot": (
        "1:2", "join a b; announce b; 10s; restart_from_snapshot; renew a b", {"notice a": "node_left b in 14 s"},
        "acknowledge a b", {"drain": "b"},
    ),
    # a drain
    "a drain gives notice if the run wants any": (
        "1:2 notice_timeout_s=20", "join a b; drain b deadline_s=300", {"notice a": "node_drained b in 20 s"},
        "drain b deadline_s=10", {"notice a": "node_drained b in 8 s"},  # the rest is for the workers' end
        "acknowledge a b", {"left_s b": "10", "stop": "a"}, "leave b; join a", {"ledger": "node_drained"},
    ),
    "a drain of a run without notices is as before": (
        "1:2", "join a b; drain b deadline_s=300", {"drain": "b", "stop": "a"},
    ),
    # an arrival
    "an arrival waits until the workers have acknowledged": (
        "1:3 scale_up=on-notice notice_timeout_s=20", "join a b; form; join c",
        {"notice a": "node_arrived c in 20 s", "reason c": until(completion.admits_soon(1), "ends", 20)},
        "acknowledge a b", {"stop": "a b"}, "join a b", {"ranks": "a b c", "ledger": "node_arrived"},
    ),
    "an arrival is admitted at the deadline, and without a timeout after a minute": (
        "1:2 scale_up=on-notice", "join a; form; join c; 59.9s", {"start": "a"}, "0.1s", {"stop": "a"},
    ),
    "a notice is not taken back when who arrived is gone": (  # the others' workers may already have ended
        "1:2 scale_up=on-notice", "join a; form; join c; leave c; acknowledge a", {"stop": "a"},
    ),
    "a worker that loses another one meanwhile ends the notice of an arrival, for free": (
        "1:3 scale_up=on-notice max_restarts=1", "join a b; form; join c; fail a consequence=True",
        {"stop": "a b"}, "join a b", {"ranks": "a b c", "ledger": "node_arrived"},
    ),
    "also if no restart is left, as no other cause is reported": (
        "1:3 scale_up=on-notice", "join a b; form; join c; fail a consequence=True; renew b", {"stage": "running"},
        "1.1s; renew b", {"stop": "a b"}, "join a b", {"ranks": "a b c", "ledger": "node_arrived"},
    ),
    "also if who arrived is gone": (
        "1:3 scale_up=on-notice", "join a b; form; join c; fail a consequence=True; leave c; renew b; 1.1s; renew b",
        {"stop": "a b"}, "join a b", {"ranks": "a b", "ledger": "node_arrived"},
    ),
    "but not if the cause is reported": (
        "1:3 scale_up=on-notice", "join a b; form; join c; fail a consequence=True; fail b",
        {"stage": "failed", "blamed": "b"},
    ),
    "nor if it has failed by itself": (
        "1:3 scale_up=on-notice max_restarts=1", "join a b; form; join c; fail a; join a b",
        {"ledger": "worker_failure!"},
    ),
    "who leaves and is gone meanwhile does not hide why a worker has failed": (
        "1:3 notice_timeout_s=20", "join a b c; drain b deadline_s=300; succeed b; fail a consequence=True; leave b",
        {"stage": "running"}, "fail c", {"stage": "failed", "blamed": "c"},  # the cause may still come
    ),
})  # fmt: skip
def test_a_notice(story):
    check(story)


@pytest.mark.parametrize("way", ["node_left", "node_lost", "node_drained"])
def test_a_notice_stays_valid_after_the_leaving_node_has_finished(way: str):
    """The workers of c have acknowledged it, and ended: only the next round starts them again."""
    gone = {"node_left": "leave b", "node_lost": "lose b", "node_drained": "drain b deadline_s=10"}[way]
    drained = "join a b c; drain b deadline_s=300; acknowledge c; succeed b"
    check((
        "1:3 notice_timeout_s=20", f"{drained}; {gone}", {"stop": "a c"}, "join a c", {"ranks": "a c", "ledger": way},
    ))  # fmt: skip
