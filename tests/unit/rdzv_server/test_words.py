"""Modules of sentences: imported when their first message is made, or all at once."""

import subprocess
import sys

import pytest

from rdzv_server import words

SHOW = "print(*sorted(name for name in sys.modules if name.startswith('rdzv_server.words.')))"


def loaded_after(code: str) -> list[str]:
    program = f"import sys; from rdzv_server.words import admission, losses\n{code}\n{SHOW}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_a_module_is_imported_when_its_first_message_is_made():
    assert loaded_after("") == []
    assert loaded_after("admission.min_above_max(4, 2)") == ["rdzv_server.words.admission"]


def test_a_server_imports_all_of_them_at_once():
    loaded = loaded_after("from rdzv_server import words; words.load()")
    assert len(loaded) > 20 and "rdzv_server.words.etcd" in loaded


def test_a_missing_module_or_name_is_an_error():
    with pytest.raises(ImportError):
        words.no_such_part.message()
    with pytest.raises(AttributeError):
        getattr(words, "_private")  # noqa: B009
