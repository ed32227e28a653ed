"""Trouble of the server: an agent that is heard when it can be is not lost, and one that is gone is."""

from hypothesis import given
from hypothesis import strategies as st

from rdzv_server.core.kernel.liveness import UNANSWERED, HoldUp, Leases, Loss

LEASE_S, GRACE_S, RETRY_S = 10.0, 1.0, 3.0
FOR_EVER = float("inf")

steps = st.one_of(
    st.tuples(st.just("time passes"), st.floats(0.1, 0.4 * LEASE_S)),
    st.tuples(st.just("the process stands still"), st.floats(0.5, 3 * LEASE_S)),
    st.tuples(st.just("a write is slow"), st.floats(0.1, 3 * LEASE_S)),
    st.tuples(st.just("the leadership lapses"), st.floats(0.1, 3 * LEASE_S)),
)


def hold_up(what: str, seconds: float) -> HoldUp | None:
    match what:
        case "the process stands still":
            return HoldUp(seconds, seconds)
        case "a write is slow":
            return HoldUp(0.0, seconds)
        case "the leadership lapses":
            return HoldUp(seconds, FOR_EVER)
    return None


def lost_at(leases: Leases, now: float) -> Loss | None:
    leases.settle(now)
    lost = leases.expired(now)
    assert leases.expired(now) == lost, "the question has a side effect"
    return lost


given_up = st.sampled_from(("nothing", "a close", "a poll and then a close"))
"""Requests that the server reads, after its trouble, from an agent that stopped waiting meanwhile."""


@given(st.lists(st.tuples(steps, given_up), min_size=1, max_size=60))
def test_an_outage_delays_a_loss_by_one_lease_and_causes_none(story: list[tuple[tuple[str, float], str]]) -> None:
    leases, now, counted_s, lease_from_s = Leases(LEASE_S, GRACE_S), 0.0, 0.0, 0.0
    for name in ("well", "gone", "witness"):
        leases.renew(name, now)
    for (what, seconds), is_read in story:
        trouble = hold_up(what, seconds)
        now += seconds
        counted_s += seconds - (trouble.still_s if trouble else 0.0)
        if trouble:
            leases.resume(now, trouble)
            if trouble.silent_s >= UNANSWERED * LEASE_S and not lease_from_s:
                lease_from_s = counted_s
        leases.renew("witness", now)
        is_silence = trouble and trouble.silent_s >= UNANSWERED * LEASE_S
        if is_read == "a poll and then a close" and is_silence:
            leases.renew("well", now)
        if is_read != "nothing" and (is_silence or what == "time passes"):
            leases.disconnect("well", now)
        if is_silence:  # it returns only at its next try
            now, counted_s = now + RETRY_S, counted_s + RETRY_S
            leases.renew("witness", now)
        if (lost := lost_at(leases, now)) and lost.agent_id == "well":
            raise AssertionError(lost.cause)
        leases.renew("well", now)
        assert list(leases.renewed_at.values()) == sorted(leases.renewed_at.values())
        if lost := lost_at(leases, now):
            assert lost.agent_id == "gone" and counted_s >= LEASE_S - 1e-6
            return
        assert counted_s < lease_from_s + LEASE_S + 1e-6, "one fresh lease, after the first trouble"
