"""A program's own lines, as text and as JSON, and the level that LOGLEVEL names."""

import json
import time

import pytest
from rdzv_protocol.log_lines import LineFormat, complaint, lowest_level
from rdzv_protocol.words import flags

from tests.support.message_search import pattern

AT = 1_785_585_600.1239


def test_a_line_of_text_has_the_local_time(monkeypatch):
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    line = LineFormat("node-agent").line("hello", 30, AT, {"round": 3})
    assert line == "2026-08-01 21:00:00 node-agent: hello"
    monkeypatch.undo()
    time.tzset()


def test_a_server_s_line_has_its_level():
    line = LineFormat("rdzv-server").line("hello", 30, AT, {"traceback": "Traceback"}, shows_level=True)
    assert line[19:] == " WARNING rdzv-server: hello\nTraceback"


def test_a_json_line_has_only_the_known_fields():
    form = LineFormat("node-agent", is_json=True)
    line = form.line('a "name"\nwith \udcff in it', 20, AT, {"run_id": "r", "group_rank": 0, "event": ""})
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-08-01T12:00:00.123Z",
        "level": "INFO",
        "program": "node-agent",
        "message": 'a "name"\nwith \\udcff in it',
        "run_id": "r",
        "group_rank": 0,
    }


@pytest.mark.parametrize("words", [["--log-format", "json"], ["--log_format=json"]])
def test_a_mistake_in_a_command_line_is_always_reported_on_one_line(words):
    wrong = "--token-file /no\nwhere: No such file or directory"
    assert complaint("node-agent", wrong, []) == "node-agent: error: --token-file /no where: No such file or directory"
    line = complaint("node-agent", wrong, words)
    assert "\n" not in line
    assert json.loads(line)["message"] == f"error: {wrong}"


@pytest.mark.parametrize(
    ("word", "level"),
    [(None, 20), ("", 20), ("DEBUG", 10), ("warning", 30), (" ERROR ", 40), ("CRITICAL", 50), ("35", 35)],
)
def test_loglevel_names_the_least_weight(word, level):
    assert lowest_level({} if word is None else {"LOGLEVEL": word}) == level


def test_an_unknown_log_level_is_reported():
    with pytest.raises(ValueError, match=pattern(flags.bad_level("LOGLEVEL", "LOUD"))):
        lowest_level({"LOGLEVEL": "loud"})
