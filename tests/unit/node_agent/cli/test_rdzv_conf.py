"""`--rdzv-conf`, as ours."""

import pytest

from node_agent.cli.rdzv_conf import KEYS, RdzvConf, parse
from node_agent.config import UsageError


def conf(text: str, backend: str = "static") -> RdzvConf:
    return parse(text, "--rdzv-conf", backend)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("join_timeout=5", RdzvConf(join_timeout_s=5.0)),
        ("timeout=5", RdzvConf(join_timeout_s=5.0)),
        ("timeout=5,join_timeout=6", RdzvConf(join_timeout_s=6.0)),
        ("last_call_timeout=5", RdzvConf(last_call_timeout_s=5.0)),
        ("close_timeout=5", RdzvConf(farewell_timeout_s=5.0)),
        ("read_timeout=5", RdzvConf(connect_timeout_s=5.0)),
        ("keep_alive_interval=2", RdzvConf(lease_s=6.0)),
        ("keep_alive_max_attempt=2", RdzvConf(lease_s=10.0)),
        ("keep_alive_interval=0.5,keep_alive_max_attempt=4", RdzvConf(lease_s=2.0)),
        ("is_host=true", RdzvConf(is_host=True)),
        ("is_host=0", RdzvConf(is_host=False)),
        ("", RdzvConf()),
        (" join_timeout = 5 , is_host=1 ", RdzvConf(join_timeout_s=5.0, is_host=True)),
        ("'join_timeout=5'", RdzvConf(join_timeout_s=5.0)),
        ('"join_timeout=5,is_host=1"', RdzvConf(join_timeout_s=5.0, is_host=True)),
        ("store_type=file,join_timeout=5,a=b=c", RdzvConf(join_timeout_s=5.0, ignored=("store_type", "a"))),
    ],
)
def test_what_a_setting_means(text, means):
    assert conf(text) == means


def test_c10d_has_no_timeout_of_that_name():
    assert conf("timeout=5", "c10d") == RdzvConf(ignored=("timeout",))


BAD = {
    "join_timeout": "soon",
    "last_call_timeout": "-1",
    "close_timeout": "nan",
    "timeout": "x",
    "read_timeout": "1e9",
    "keep_alive_interval": "often",
    "keep_alive_max_attempt": "0",
    "is_host": "perhaps",
}


def test_every_setting_has_a_bad_value_here():
    assert BAD.keys() == KEYS.keys()


@pytest.mark.parametrize("key", KEYS)
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
        conf(text)
