"""Names that are this machine's."""

import os
import socket

import pytest

from node_agent.kernel.transport.this_machine import names_this_machine

FOREIGN = ["198.51.100.7", "2001:db8::7", "no-such-host.invalid", ""]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1", socket.gethostname()])
def test_names_of_this_machine(host):
    assert names_this_machine(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_names_of_others(host):
    assert not names_this_machine(host)


def test_every_address_of_this_machine():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.7", 9))  # sends nothing, only looks up the route
        except OSError:
            pytest.skip("this machine has no route to anywhere")
        assert names_this_machine(probe.getsockname()[0])


@pytest.mark.torch
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1", os.uname().nodename, *FOREIGN])
def test_torchs_rule_agrees(host):
    utils = pytest.importorskip("torch.distributed.elastic.rendezvous.utils")
    assert names_this_machine(host) == utils._matches_machine_hostname(host)
