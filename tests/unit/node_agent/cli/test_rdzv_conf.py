"""`--rdzv-conf`, as ours."""

import pytest

from node_agent.cli.arguments import SETTINGS, Arguments, make
from node_agent.cli.plan import settings
from node_agent.config import UsageError


def conf(text: str, **given: str) -> Arguments:
    return make({"rdzv_conf": ("--rdzv-conf", text)} | {name: ("--x", value) for name, value in given.items()})


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("join_timeout=5", {"join_timeout": 5.0}),
        ("last_call_timeout=5", {"last_call_timeout": 5.0}),
        ("close_timeout=5", {"close_timeout": 5.0}),
        ("read_timeout=5", {"read_timeout": 5.0}),
        ("cas_backoff_max_seconds=0.5", {"cas_backoff_max_seconds": 0.5}),
        ("is_host=true", {"is_host": True}),
        ("is_host=0", {"is_host": False}),
        ("", {}),
        (" join_timeout = 5 , is_host=1 ", {"join_timeout": 5.0, "is_host": True}),
        ("'join_timeout=5'", {"join_timeout": 5.0}),
        ('"join_timeout=5,is_host=1"', {"join_timeout": 5.0, "is_host": True}),
        ("node_id=a,token_file=b", {"node_id": "a", "token_file": "b"}),
        ("store_type=file,join_timeout=5,a=b=c", {"join_timeout": 5.0, "ignored": ("store_type", "a")}),
    ],
)
def test_what_a_setting_means(text, means):
    found = conf(text)
    assert found == Arguments(rdzv_conf=found.rdzv_conf, sources=found.sources, **means)


@pytest.mark.parametrize(
    ("text", "join_timeout_s", "lease_s"),
    [
        ("timeout=5", 5.0, None),
        ("timeout=5,join_timeout=6", 6.0, None),
        ("keep_alive_interval=2", None, 6.0),
        ("keep_alive_max_attempt=2", None, 10.0),
        ("keep_alive_interval=0.5,keep_alive_max_attempt=4", None, 2.0),
        ("keep_alive_interval=0.5,lease=3", None, 3.0),
    ],
)
def test_what_it_means_to_the_run(text, join_timeout_s, lease_s):
    found = settings(conf(text))
    assert (found.join_timeout_s, found.lease_s) == (join_timeout_s, lease_s)


def test_a_flag_goes_before_a_setting():
    assert conf("join_timeout=5", join_timeout="6").join_timeout == 6.0


def test_c10d_has_no_timeout_of_that_name():
    found = conf("timeout=5", rdzv_backend="c10d")
    assert (found.ignored, settings(found).join_timeout_s) == (("timeout",), None)


BAD = {
    "join_timeout": "soon",
    "last_call_timeout": "-1",
    "close_timeout": "nan",
    "timeout": "x",
    "read_timeout": "1e9",
    "keep_alive_interval": "often",
    "keep_alive_max_attempt": "0",
    "is_host": "perhaps",
    "cas_backoff_max_seconds": "x",
}


OURS = {"connect_timeout", "server_lost_timeout", "lease", "disconnect_grace"}


def test_every_setting_has_a_bad_value_here():
    assert BAD.keys() == {key for key, flag in SETTINGS.items() if not flag.help or flag.metavar == "S"} - OURS


@pytest.mark.parametrize("key", BAD)
def test_a_bad_value_is_refused_by_its_name(key):
    with pytest.raises(UsageError, match=rf"^--rdzv-conf: {key}: .*, not '{BAD[key]}'$"):
        conf(f"{key}={BAD[key]}")


@pytest.mark.parametrize("text", ["join_timeout", "join_timeout=", "=5", "a=1,", ",", "a=1,,b=2"])
def test_what_is_no_setting(text):
    with pytest.raises(UsageError, match=r"^--rdzv-conf: settings as KEY=VALUE,KEY=VALUE, not "):
        conf(text)


@pytest.mark.torch
@pytest.mark.parametrize("text", ["join_timeout", "join_timeout=", "=5", "a=1,", "a=1,,b=2"])
def test_torchrun_refuses_the_same(text):
    utils = pytest.importorskip("torch.distributed.elastic.rendezvous.utils")
    with pytest.raises(ValueError):
        utils._parse_rendezvous_config(text)


@pytest.mark.parametrize("text", ["keep_alive_interval=0", "keep_alive_interval=100000,keep_alive_max_attempt=9"])
def test_a_lease_out_of_bounds(text):
    with pytest.raises(UsageError, match="keep_alive_interval times keep_alive_max_attempt is a number of seconds"):
        settings(conf(text))
