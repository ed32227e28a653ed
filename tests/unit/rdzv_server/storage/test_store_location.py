"""Places of the records: addresses of etcd as people write them, and this server's own address on the way there."""

import os
import socket
from pathlib import Path

import pytest

from rdzv_server.storage.base import StoreBroken
from rdzv_server.storage.store_location import EtcdLocation, make_store
from rdzv_server.words import etcd as words
from rdzv_server.words import storage as storage_words
from tests.support.message_search import pattern
from tests.support.no_home_folder import remove_home_folder


@pytest.mark.parametrize(
    ("text", "members", "prefix"),
    [
        ("etcd://a", ["a:2379"], "default"),
        ("etcd://a:1,b,10.0.0.3:2", ["a:1", "b:2379", "10.0.0.3:2"], "default"),
        ("etcd://[::1]:1,[::2],::3", ["[::1]:1", "[::2]:2379", "[::3]:2379"], "default"),
        ("etcd://a/lab", ["a:2379"], "lab"),
        ("etcd://a/lab/east/", ["a:2379"], "lab/east"),
        ("etcd://a/", ["a:2379"], "default"),
    ],
)
def test_members_and_the_cluster(text, members, prefix):
    place = EtcdLocation.parse(text)
    assert list(place.members) == members
    assert place.prefix == f"/rdzv-server/{prefix}"


@pytest.mark.parametrize(
    "text", ["etcd://", "etcd:///lab", "etcd://a,,b", "etcd://a:port", "etcd://a:0", "etcd://a b", "etcd://http://a:1"]
)
def test_an_invalid_member_is_named(text):
    with pytest.raises(StoreBroken, match=pattern(words.no_member, store=text)):
        EtcdLocation.parse(text)


def test_a_cluster_name_that_cannot_be_a_key_is_refused():
    with pytest.raises(StoreBroken, match=pattern(words.bad_cluster_name, store="etcd://a/my lab")):
        EtcdLocation.parse("etcd://a/my lab")


def test_a_servers_default_address_is_reachable_by_others():
    """A server beside its etcd, on the same machine, also has such an address."""
    own = EtcdLocation.parse("etcd://127.0.0.1").own_address()
    assert own == socket.gethostname() or not own.startswith("127.")


def test_a_relative_folder_for_state_has_no_effect(tmp_path, monkeypatch):
    """Otherwise a server that is started in another folder would not find its runs."""
    remove_home_folder(monkeypatch, tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    _, place = make_store(None, 1)
    assert place.startswith(str(tmp_path / "home"))


def test_servers_under_test_keep_no_state_in_the_home_of_the_user():
    """A test would continue the runs of an earlier one at the same port, and so would a server of the user."""
    _, place = make_store(None, 1)
    assert not Path(place).is_relative_to(Path.home())
    assert os.listdir(os.path.dirname(place)) == [], "each test has a folder of its own"


def test_a_user_without_a_home_must_name_a_store(tmp_path, monkeypatch):
    """Such as the user of a container that is in no /etc/passwd. Otherwise the state would be in a folder named ~."""
    remove_home_folder(monkeypatch, tmp_path)
    with pytest.raises(StoreBroken, match=pattern(storage_words.NO_HOME)):
        make_store(None, 1)
    assert list(tmp_path.iterdir()) == []
