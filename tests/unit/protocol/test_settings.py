"""Settings of a run, and agents that disagree."""

import pytest
from msgspec.structs import fields
from rdzv_protocol.settings import RequestedSettings, RunSettings
from rdzv_protocol.words import flags as words


def test_requested_settings_are_the_settings_of_a_run():
    assert RequestedSettings.__struct_fields__ == RunSettings.__struct_fields__


def test_an_agent_does_not_request_settings_by_default():
    assert {field.default for field in fields(RequestedSettings)} == {None}


def test_settings_that_are_not_requested_take_the_default():
    asked = RequestedSettings(min_nodes=2, max_nodes=4, fatal_exit_codes=(42,))
    assert asked.resolve() == RunSettings(min_nodes=2, max_nodes=4, fatal_exit_codes=(42,))


def test_zero_is_a_valid_setting():
    assert RequestedSettings(last_call_timeout_s=0.0).resolve().last_call_timeout_s == 0.0
    assert RequestedSettings(max_restarts=0).conflicts(RunSettings(max_restarts=3)) == [
        words.other_setting("--max-restarts", 3, 0)
    ]


def test_defaults_are_torchruns_but_for_the_last_call():
    run = RunSettings()
    assert (run.min_nodes, run.max_nodes, run.max_restarts) == (1, 1, 0)
    assert (run.join_timeout_s, run.last_call_timeout_s) == (600.0, None)


def test_a_conflict_reports_a_setting_without_a_value_in_the_run():
    said = RequestedSettings(last_call_timeout_s=30.0).conflicts(RunSettings())
    assert said == [words.other_setting("--last-call-timeout", None, 30.0)]


@pytest.mark.parametrize(
    ("run", "asked", "theirs", "ours"),
    [
        ({"min_nodes": 3, "max_nodes": 3}, {"min_nodes": 2, "max_nodes": 2}, "3", "2"),
        ({"min_nodes": 2, "max_nodes": 4}, {"max_nodes": 3}, "2:4", "2:3"),
        ({"min_nodes": 2, "max_nodes": 4}, {"max_nodes": 2}, "2:4", "2"),
        ({"min_nodes": 3, "max_nodes": 3}, {"min_nodes": 2, "max_nodes": 4, "legal_sizes": (2, 4)}, "3", "2,4"),
        ({"min_nodes": 2, "max_nodes": 4}, {"min_nodes": 2, "max_nodes": 4, "legal_sizes": (2, 4)}, "2:4", "2,4"),
        ({"min_nodes": 2, "max_nodes": 4, "legal_sizes": (2, 4)}, {"min_nodes": 3, "max_nodes": 3}, "2,4", "3"),
        ({"min_nodes": 2, "max_nodes": 2, "legal_sizes": (2, 4)}, {"max_nodes": 4, "legal_sizes": (2, 4)}, "2", "2,4"),
    ],
)
def test_a_conflict_of_sizes_shows_them_as_nnodes_takes_them(run, asked, theirs, ours):
    assert RequestedSettings(**asked).conflicts(RunSettings(**run)) == [words.other_setting("--nnodes", theirs, ours)]


def test_a_conflict_shows_switches_and_lists_as_a_person_would():
    assert words.other_setting("--rerun", True, False) == words.other_setting("--rerun", "on", "off")
    assert words.other_setting("--codes", (3, 4), ()) == words.other_setting("--codes", "3,4", None)
    assert words.other_setting("--lease", 30.0, 2.5) == words.other_setting("--lease", "30", "2.5")


def test_an_agent_that_asks_for_nothing_agrees_with_every_run():
    assert RequestedSettings().conflicts(RunSettings(max_nodes=7, scale_up="manual")) == []


def test_a_conflict_names_both_values():
    run = RunSettings(max_nodes=4, scale_up="manual")
    asked = RequestedSettings(max_nodes=3, scale_up="immediate", max_restarts=0)
    assert asked.conflicts(run) == [
        words.other_setting("--nnodes", "1:4", "1:3"), words.other_setting("--scale-up", "manual", "immediate")
    ]  # fmt: skip
