"""Completion of `rdzvctl` in real shells: the names of runs, nodes and contexts, from a real server."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rdzv_server.words import completion, operations
from rdzvctl.completion import HARMLESS
from tests.support.certificates import Authority
from tests.support.cluster import PATIENT, Cluster
from tests.support.programs import Server
from tests.support.rdzvctl import environment, rdzvctl
from tests.support.tcp_proxy import TcpProxy
from tests.support.terminal import Terminal

PROMPT = "ready> "
SHELLS = {
    "bash": (("bash", "--norc", "--noprofile", "-i"), "source <(rdzvctl --print-completion bash)"),
    "zsh": (("zsh", "-f", "-i"), 'autoload -U compinit; compinit -u -D; eval "$(rdzvctl --print-completion zsh)"'),
    "fish": (
        ("fish", "--no-config", "-i"),
        f"function fish_prompt; echo '{PROMPT}'; end; rdzvctl --print-completion fish | source",
    ),
}
"""Command that starts each shell without a user's configuration, and what a user types once for the completion."""


async def offered(kind: str, begun: str = "", *, endpoint: str = "", **env: str) -> Sequence[str]:
    """Return the completions that a shell gets."""
    return (await rdzvctl("__complete", kind, begun, endpoint=endpoint, env=env)).lines


@pytest.mark.parametrize("shell", SHELLS)
async def test_a_shell_completes_names_from_the_server(shell: str, cluster: Cluster, tmp_path: Path) -> None:
    """The Tab key completes each line, which `rdzvctl` then accepts."""
    command, load = SHELLS[shell]
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    where = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{Path(shutil.which(shell) or '').parent}"}
    env = environment(XDG_CONFIG_HOME=str(tmp_path), PS1=PROMPT, **where)
    await rdzvctl("config", "set-context", "laboratory", "--endpoint", cluster.endpoint, env=env)
    await (await cluster.node("host-17", "--run-id", "train-7", "--nnodes", "2", *PATIENT)).line(
        completion.waiting_for(1)
    )
    async with Terminal(*command, env=env, columns=200) as shown:
        seen = 0
        for typed, shows in (
            (f"{load}; echo lo'aded'\n", "loaded"),
            ("rdzvctl nodes tra\t\n", r"host-17 +waiting"),
            (f"rdzvctl --endpoint {cluster.endpoint} cordon host\t\n", operations.cordoned("host-17", None, "")),
            ("rdzvctl uncordon host\t\n", operations.uncordoned("host-17", "", by_operator=True)),
            ("rdzvctl config use-context labo\t\n", "laboratory is the current context"),
            ("rdzvctl runs --context labo\t\n", "train-7 +forming"),
        ):
            shown.type(typed)
            seen = await shown.shows(f"{shows}(?s:.*?){PROMPT}", after=seen)


async def test_each_word_has_its_kind_of_names(cluster: Cluster) -> None:
    at = cluster.endpoint
    await cluster.finish(await cluster.nodes("a", "--run-id", "ended", nproc=1))
    await cluster.nodes("b", "--run-id", "going-on", nproc=1)
    await rdzvctl("cordon", "c", "--reason", "its fan", endpoint=at)
    for kind, names in (
        ("runs", ["ended", "going-on"]), ("live-runs", ["going-on"]), ("ended-runs", ["ended"]), ("nodes", ["b"]),
        ("cordoned-nodes", ["c"]), ("contexts", []),
    ):  # fmt: skip
        assert await offered(kind, endpoint=at) == names, kind
    assert await offered("runs", "go", endpoint=at) == ["going-on"]
    assert await offered("runs", RDZVCTL_LINE=f"rdzvctl --endpoint {at} nodes ") == ["ended", "going-on"]


@pytest.mark.parametrize("name", ["a b", "-rf", "~root", "=ls", "a;b", "*", "x\N{CYRILLIC SMALL LETTER A}", "a\n", ""])
def test_a_name_that_a_shell_would_not_take_literally(name: str) -> None:
    assert not HARMLESS.fullmatch(name)


async def test_completion_leaves_out_names_that_a_shell_would_execute(cluster: Cluster) -> None:
    """Any agent that may join chooses names for its run and its node. Such a name must not act on Tab or Enter."""
    for run_id, node_id in (("$(touch pwned)", "`id`"), ("team/r_1", "n.1")):
        await (await cluster.node(node_id, "--run-id", run_id, "--nnodes", "2")).line(completion.waiting_for(1))
    assert await offered("runs", endpoint=cluster.endpoint) == ["team/r_1"]
    assert await offered("nodes", endpoint=cluster.endpoint) == ["n.1"]


async def test_without_an_answer_in_time_completion_offers_and_prints_nothing(
    cluster: Cluster, authority: Authority, unused_tcp_port: int
) -> None:
    """A server that accepts the connection and is silent is abandoned too; other commands wait half a minute for it."""
    pair = authority.issue("server")
    tls = await Server.listen("--tls-cert", pair.cert, "--tls-key", pair.key)
    async with TcpProxy(cluster.endpoint) as silent:
        silent.hold()
        for at in (silent.address, f"127.0.0.1:{unused_tcp_port}", "nonexistent.invalid:1", "not an endpoint",
                   tls.endpoint):  # fmt: skip
            assert await offered("runs", endpoint=at) == [], at
    assert await offered("runs", endpoint=cluster.endpoint, RDZVCTL_LINE="rdzvctl --endpoint 'open") == []
    assert await offered("contexts", RDZV_CONFIG="/proc/self/mem") == []
