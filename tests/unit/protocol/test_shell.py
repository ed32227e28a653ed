"""Names in commands that a person copies into a shell."""

from rdzv_protocol.shell import quoted


def test_a_text_for_a_shell_is_one_printable_word() -> None:
    assert [quoted(text) for text in ("run", "r\x1b 1")] == ["run", "'r  1'"]
