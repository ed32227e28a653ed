"""The page about events: its check of a signature works, and it explains every kind of event."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from rdzv_protocol.events import EventKind, RunEvent

from rdzv_server.core.kernel.run import Cause
from rdzv_server.http.webhook import signature

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "events.md").read_text()
SECRET, BODY = b"secret", b'{"run_id": "run", "events": []}'
NOW = 1_790_000_000


@pytest.fixture(scope="module")
def is_genuine() -> Callable[..., bool]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Callable[..., bool]] = {}
    exec(code, names)
    return names["is_genuine"]


def test_a_request_of_the_server_is_genuine(is_genuine: Callable[..., bool]) -> None:
    assert is_genuine(SECRET, signature(SECRET, BODY, int(time.time())), BODY)


@pytest.mark.parametrize(
    ("secret", "body", "age_s"),
    [(b"another", BODY, 0), (SECRET, BODY + b" ", 0), (SECRET, BODY, 301), (SECRET, BODY, -301)],
    ids=["another secret", "another body", "too old", "of the future"],
)
def test_an_undocumented_change_of_events_fails_the_page_check(
    is_genuine: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, secret: bytes, body: bytes, age_s: int
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    assert not is_genuine(SECRET, signature(secret, BODY, NOW - age_s), body)


def test_a_signature_that_was_taken_from_an_older_request_does_not_pass_with_a_newer_time(
    is_genuine: Callable[..., bool],
) -> None:
    old = signature(SECRET, BODY, int(time.time()) - 1_000)
    assert not is_genuine(SECRET, f"t={int(time.time())},{old.partition(',')[2]}", BODY)


def test_every_kind_and_field_is_explained() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert [name for name in (*get_args(EventKind), *RunEvent.__struct_fields__) if name not in named] == []


def test_the_row_of_the_cause_names_every_cause() -> None:
    (row,) = re.findall(r"^\| `cause` \| (.+) \|$", PAGE, re.MULTILINE)
    assert sorted({*re.findall(r"`(\w+)`", row)}) == sorted(Cause)
