"""Prefixes of lines, as torchrun makes them."""

from node_agent.output.line_prefix import PREFIX_NAMES, default_prefix, prefix


def test_the_default_prefix_is_torchruns() -> None:
    assert default_prefix("trainer", 3) == "[trainer3]:"


def test_a_template_is_filled_in_as_torchrun_does() -> None:
    names = {"role_name": "trainer", "rank": 12, "local_rank": 4, "node_id": "gpu-a", "group_rank": 1, "hostname": "h"}
    assert set(names) == set(PREFIX_NAMES)
    assert prefix("${role_name}|$rank|${local_rank}|$$|${unknown}|$", **names) == "trainer|12|4|$|${unknown}|$"
    assert prefix("[${node_id}:${group_rank}@${hostname}] ", **names) == "[gpu-a:1@h] "
