"""Completion of a round, and the reasons for waiting until then."""

from rdzv_server.core.kernel import completion
from rdzv_server.words import completion as words
from rdzv_server.words import runs, sizes
from tests.support.scenario import Scenario, running
from tests.support.stories import check, stories, until


def gathered(joined: int, names: str, high: int, awaits: str = "") -> str:
    """Return the reason for waiting in a last call."""
    low = 2 if high < 8 else 4
    return words.last_call(words.joined(joined, names), low, high, "", awaits or words.awaits_more(high))


@stories({
    "max_nodes have joined": (
        "2:3", "join a b", {"wait": "a b"},
        "join c", {"ranks": "a b c", "reason a": words.all_joined(3), "woken": "a b c"},
    ),
    "every survivor has rejoined": (
        "2:4", "join a b c; form; lose c; join a", {"stage": "forming"},
        "join b", {"ranks": "a b", "reason a": words.all_rejoined(1, words.joined(2, "a, b"))},
    ),
    "survivors below min wait for a replacement": (
        "2", "join a b; lose b; join a", {"wait": "a"}, "join c", {"ranks": "a c"},
    ),
    "the last call lets a round go that has its minimum": (
        "2:4 last_call_timeout_s=30", "join a; 100s; join b; 29.9s", {"stage": "forming"},
        "0.1s", {"ranks": "a b", "reason a": words.last_call_ended(2)},
    ),
    "a newcomer does not prolong a last call that was asked for": (
        "2:4 last_call_timeout_s=30", "join a b; 20s; join c; 9.9s", {"stage": "forming"}, "0.1s", {"ranks": "a b c"},
    ),
    "the last call begins again when the minimum was lost meanwhile": (
        "2:4 last_call_timeout_s=30", "join a b; 20s; leave b; 20s; join c; 29s", {"stage": "forming"},
        "1s", {"ranks": "a c"},
    ),
    "a default last call ends when no node has joined for a while": (
        "2:4", "join a; 100s; join b; 4.9s", {"stage": "forming"},
        "0.1s", {"ranks": "a b", "reason a": words.last_call_ended(2)},
    ),
    "each newcomer prolongs it by as much": (
        "2:4", "join a b; 4s; join c; 4.9s", {"stage": "forming"}, "0.1s", {"ranks": "a b c"},
    ),
    "but not forever": (
        "1:9", "join a; 4s; join b; 4s; join c; 4s; join d; 4s; join e; 4s; join f; 4s; join g; 4s; join h; 1.9s",
        {"stage": "forming"}, "0.1s", {"ranks": "a b c d e f g h"},
    ),
    "it begins again, too, when the minimum was lost meanwhile": (
        "2:4", "join a b; 4s; leave b; 20s; join c; 4.9s", {"stage": "forming"}, "0.1s", {"ranks": "a c"},
    ),
    "a round without survivors forms like a first one": (
        "1:3", "join a b; form; lose a; lose b; join c", {"stage": "forming"}, "30s", {"ranks": "c"},
    ),
    "the join timeout fails the run and names who was there and who was missing": (
        "3 join_timeout_s=600", "join a b c; lose c; join a; 600s",
        {"stage": "failed",
         "reason a": runs.join_timeout(words.too_few(2, 1, 3, "a", to_stop=words.to_stop("b", 1), gone="c"))},
    ),
    "the join timeout counts from the moment the round fell below its minimum": (
        "2:3 join_timeout_s=600 last_call_timeout_s=1000", "join a b; 500s; leave b; 599s", {"stage": "forming"},
        "1s", {"stage": "failed"},
    ),
    "a slow survivor keeps its seat": (
        "2", "join a b spare; leave a; join c",
        {"wait": "c spare", "reason c": gathered(2, "spare, c", 2, words.awaits_stops(words.to_stop("b", 1)))},
        "join b", {"ranks": "spare b"},
    ),
    "the last call excludes no agent that is alive and stopping": (
        "1:2 max_restarts=1 lease_s=1000", "join a b; fail a; join a; 500s", {"stage": "forming"},
        "join b", {"ranks": "a b", "ledger": "worker_failure!"},
    ),
    "a slow survivor that goes silent is not waited for": (
        "1:2 max_restarts=1", "join a b; fail a; join a; lose b", {"ranks": "a"},
    ),
    "a round takes the largest legal size that there are nodes for, and the others stand by": (
        "2:8 node_unit=2", "join a b c d e; 5s",
        {"ranks": "a b c d", "reason e": words.standby_full(1, 4, sizes.legal_sizes([2, 4, 6, 8]))},
        "join f", {"wait": "e f", "reason e": until(words.admits_soon(1), "ends", 0.1)},
        "0.1s", {"stage": "forming"},
    ),
    "too few for any legal size are too few for the run": (
        "2:8 node_unit=4", "join a b c",
        {"reason a": until(words.too_few(1, 3, 4, "a, b, c", sizes=sizes.legal_sizes([4, 8])), "gives_up", 600)},
    ),
    "a loss shrinks a run to the next legal size, and who has the first ranks keeps them": (
        "1:4 legal_sizes=1,2,4", "join a b c d; lose b; join a c d", {"ranks": "a c", "wait": "d"},
        "join e; join a c", {"ranks": "a c d e"},
    ),
    "a replacement is waited for before the run shrinks": (
        "2:4 shrink_after_s=60", "join a b c d; lose d; join a b c; 59.9s",
        {"stage": "forming", "reason a": until(gathered(3, "a, b, c", 4, words.awaits_replacement("d")), "starts", 0)},
        "0.1s", {"ranks": "a b c", "reason a": words.no_replacement(60, 3)},
    ),
    "a replacement that comes in time fills the round at once": (
        "2:4 shrink_after_s=60", "join a b c d; lose d; join a b c; 30s; join e", {"ranks": "a b c e"},
    ),
    "the wait begins again with the next loss": (
        "2:4 shrink_after_s=60", "join a b c d; lose d; join a b c; 30s; lose c; 59.9s", {"stage": "forming"},
        "0.1s", {"ranks": "a b"},
    ),
    "a failure without a lost node waits for no agent": (
        "2:4 shrink_after_s=60 max_restarts=1", "join a b; 5s; fail a; join a b", {"ranks": "a b"},
    ),
})  # fmt: skip
def test_completion(story):
    check(story)


@stories({
    "1 of 4": ("4:8", "join a", {"reason a": until(words.too_few(3, 1, 4, "a"), "gives_up", 600)}),
    "3 of 4": (
        "4:8", "join a b c", {"reason a": until(words.too_few(1, 3, 4, "a, b, c"), "gives_up", 600)},
    ),
    "4 to 8": ("4:8", "join a b c d", {"reason a": until(gathered(4, "a, b, c, d", 8), "starts", 5)}),
    "many": (
        "4:8", "join a b c d e f",
        {"reason a": until(gathered(6, words.names("abcdef", 6), 8), "starts", 5)},
    ),
    "it counts down": (
        "2", "join a; 17s", {"reason a": until(words.too_few(1, 1, 2, "a"), "gives_up", 583)},
    ),
    "standing by: full": ("2", "join a b s", {"reason s": words.standby_full(1, 2)}),
    "standing by: manual": (
        "2:3 scale_up=manual", "join a b; form; join s",
        {"reason s": words.standby_scale_up(1, "manual")},
    ),
    "standing by: at once": (
        "2:4", "join a b; form; join s", {"reason s": until(words.admits_soon(1), "ends", 0.1)},
    ),
    "standing by: cooldown": (
        "2:4 scale_up=cooldown", "join a b; form; join s", {"reason s": until(words.admits_soon(1), "ends", 300)},
    ),
    "standing by: some have finished": (
        "1:3", "join a b; form; succeed a; join s",
        {"reason s": words.standby_some_finished(1, 2), "start": "a b"},
    ),
})  # fmt: skip
def test_an_agent_reads_the_reason_of_a_wait(story):
    check(story)


def test_no_sentence_grows_with_the_number_of_nodes():
    def sentences(count):
        run = Scenario(f"{count}:{count + 2}", last_call_timeout_s=30)
        names = [f"node-{index:04}" for index in range(count)]
        run.join(*names[:-1])
        said = [run.reason(names[0])]
        run.join(names[-1])
        said.append(run.reason(names[0]))
        run.passes(30)
        said.append(run.reason(names[0]))
        run.leaves(names[0])
        run.leaves(names[1])
        said.append(run.reason(names[2]))
        run.join(names[2])
        said.append(run.reason(names[2]))
        run.join(*names[3:])
        said.append(run.reason(names[2]))
        return said

    few, many = sentences(10), sentences(200)
    assert all(len(short) + 10 >= len(long) for short, long in zip(few, many, strict=True))


def test_the_status_of_a_running_round_names_finished_ranks():
    run = running("4:8", "a", "b", "c", "d", "e", legal_sizes=(4, 8))
    assert completion.running_reason(run.run) == words.running(1, 4, of=5, sizes=sizes.legal_sizes([4, 8]))
