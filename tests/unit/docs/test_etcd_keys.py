"""docs/how-to/high-availability.md names each kind of key that the servers write into etcd."""

import re
from pathlib import Path

from rdzv_server.cluster import membership
from rdzv_server.storage import etcd

PAGE = (Path(__file__).parents[3] / "docs/how-to/high-availability.md").read_text()


def test_the_page_names_each_kind_of_key() -> None:
    (table,) = re.findall(r"\| key \| content \|\n((?:\|.*\n)+)", PAGE)
    keys = re.findall(r"^ {4}PREFIX/(\S+)", f"{etcd.__doc__}\n{membership.__doc__}", re.MULTILINE)
    assert sorted(re.findall(r"^\| `(\S+)`", table, re.MULTILINE)) == sorted(keys)
