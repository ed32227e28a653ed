"""Options from torchrun's flags."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rdzv_protocol.words import flags

from node_agent import words
from tests.support.lazy_modules import LazyModule
from tests.support.message_search import pattern

if TYPE_CHECKING:
    from node_agent.compat.torchrun.options import HandlerConfig

pytestmark = pytest.mark.torch

elastic = LazyModule("torch.distributed.elastic.rendezvous")
options = LazyModule("node_agent.compat.torchrun.options")


def config(*, endpoint: str = "head:29500", run_id: str = "nightly", **conf: object) -> HandlerConfig:
    return options.read(elastic.RendezvousParameters("rdzv-server", endpoint, run_id, 1, 3, **conf))


def test_the_defaults_are_the_runs() -> None:
    made = config()
    asked = made.agent.join.settings
    assert (made.servers, made.credentials.token) == ((("head", 29500),), None)
    join = made.agent.join
    assert (join.run_id, join.explicit_run_id, join.local_world_size) == ("nightly", True, 1)
    assert (join.node_id, join.addr) == (os.uname().nodename, "")
    assert (asked.min_nodes, asked.max_nodes, asked.max_restarts) == (1, 3, 10_000_000)
    assert (asked.join_timeout_s, asked.last_call_timeout_s, asked.lease_s, asked.scale_up) == (None, None, None, None)
    assert (made.store_timeout_s, made.close_timeout_s, made.agent.connect_timeout_s) == (60, 30, 300)


def test_torchruns_own_options() -> None:
    asked = config(join_timeout="90", last_call_timeout="5.5", keep_alive_interval="2", timeout=900).agent.join.settings
    assert (asked.join_timeout_s, asked.last_call_timeout_s, asked.lease_s) == (90, 5.5, 6)


def test_options_of_rdzv_server_take_effect() -> None:
    made = config(node_id="a", connect_timeout="1", disconnect_grace="3", scale_up="manual", close_timeout="2")
    asked = made.agent.join.settings
    assert (made.agent.join.node_id, made.agent.connect_timeout_s, made.close_timeout_s) == ("a", 1, 2)
    assert (asked.disconnect_grace_s, asked.scale_up) == (3, "manual")


def test_endpoints_without_a_port_with_an_ipv6_address_and_of_several_servers() -> None:
    assert config(endpoint="head").servers == (("head", 29400),)
    assert config(endpoint="[::1]:29500").servers == (("::1", 29500),)
    assert config(endpoint="a:1, b,[::1]:2").servers == (("a", 1), ("b", 29400), ("::1", 2))


def test_torchruns_placeholder_is_not_a_run_id() -> None:
    assert not config(run_id="none").agent.join.explicit_run_id


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "1e9"])
def test_an_invalid_time_is_refused_by_name(value: str) -> None:
    line = f"--rdzv-conf: join_timeout: {words.values.not_seconds(0, 10**6, value)}"
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        config(join_timeout=value)


def test_token_files(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with pytest.raises(ValueError, match="No such file or directory"):
        config(token_file=str(token))
    token.write_text("\n")
    with pytest.raises(ValueError, match=pattern(flags.no_token, path=str(token))):
        config(token_file=str(token))
    token.write_text("open-sesame\n")
    assert config(token_file=str(token)).credentials.token == "open-sesame"


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"tls_cert": "c", "tls_key": "k"}, words.plan.tls_without_ca("--rdzv-conf: tls_cert", "--rdzv-conf: tls_ca")),
        (
            {"tls_ca": "system", "tls_key": "k"},
            flags.belong_together("--rdzv-conf: tls_cert", "--rdzv-conf: tls_key"),
        ),
        ({"tls_ca": "/nowhere"}, "--rdzv-conf: tls_ca /nowhere: No such file or directory.*"),
        ({"tls_ca": "system", "tls_cert": "/c", "tls_key": "/k"}, "--rdzv-conf: tls_cert /c: No such file.*"),
    ],
)
def test_unusable_tls_files_are_refused_by_name(conf: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        config(**conf)


def test_tls_files() -> None:
    assert config().credentials.tls is None
    assert config(tls_ca="system").credentials.tls.ca == "system"


def test_a_worker_does_not_join_the_run_that_it_is_part_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "nightly")
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "head:29400")
    with pytest.raises(ValueError, match=pattern(words.torchrun.own_run, endpoint="head:29400", run_id="nightly")):
        config(endpoint="head:29400")
    assert config(endpoint="other:29400").servers == (("other", 29400),)
    assert config(endpoint="head:29400", run_id="eval").servers == (("head", 29400),)
