"""The lines that somebody asked for, copied from all workers into one file."""

import errno
import io
import os
from pathlib import Path
from threading import Event

import pytest

from node_agent.output.filters import LONGEST_LINE, Filtered, FilteredFile


def never(error: OSError) -> None:
    raise AssertionError(error)


def copied(path: Path, *chunks: bytes, texts: tuple[str, ...] = ("apple", "orange")) -> bytes:
    sink = Filtered("[default0]:", FilteredFile(str(path), texts, never))
    for chunk in chunks:
        sink.take(chunk)
    sink.end()
    return path.read_bytes()


def test_lines_with_one_of_the_texts_are_copied(tmp_path: Path) -> None:
    output = b"an apple\na pear\norange and apple\napplepie"
    assert copied(tmp_path / "f", output) == b"[default0]:an apple\n[default0]:orange and apple\n[default0]:applepie\n"


def test_a_line_may_come_in_pieces(tmp_path: Path) -> None:
    assert copied(tmp_path / "f", b"an ap", b"p", b"le fell", b" down\nno pear\n") == b"[default0]:an apple fell down\n"


def test_a_text_in_another_line_copies_only_that(tmp_path: Path) -> None:
    assert copied(tmp_path / "f", b"app\nle\n") == b""
    assert copied(tmp_path / "g", b"pear\n\xffapple\xff\r\n") == b"[default0]:\xffapple\xff\n"


def test_what_never_ends_is_copied_in_pieces(tmp_path: Path) -> None:
    got = copied(tmp_path / "f", b"apple" + b"x" * LONGEST_LINE, b"y\n")
    assert got == b"[default0]:apple" + b"x" * LONGEST_LINE + b"\n"


def test_several_workers_share_the_file_and_the_last_one_closes_it(tmp_path: Path) -> None:
    file = FilteredFile(str(tmp_path / "f"), ("x",), never)
    one, two = Filtered("[a]:", file), Filtered("[b]:", file)
    one.take(b"x1\n")
    one.end()
    two.take(b"x2\n")
    two.end()
    three = Filtered("[c]:", file)
    three.take(b"x3")
    three.end()
    assert (tmp_path / "f").read_bytes() == b"[a]:x1\n[b]:x2\n[c]:x3\n"
    assert file._file == -1


def test_a_file_that_cannot_be_written_is_trouble_and_no_more(tmp_path: Path) -> None:
    troubles: list[OSError] = []
    for path in (tmp_path / "absent" / "f", Path("/dev/full")):
        sink = Filtered("", FilteredFile(str(path), ("x",), troubles.append))
        sink.take(b"x\nx\n")
        sink.end()
    assert [trouble.strerror for trouble in troubles] == ["No such file or directory", "No space left on device"]


@pytest.mark.torch
def test_it_is_what_torchrun_writes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from torch.distributed.elastic.multiprocessing.tail_log import tail_logfile

    output = "an apple\na pear\r\n\norange and apple\n  indented apple\r\nlast apple\n"
    (tmp_path / "log").write_bytes(output.encode())
    finished, torchs = Event(), io.StringIO()
    finished.set()
    wanted = ("apple", "orange")
    tail_logfile(
        "[default0]:", str(tmp_path / "log"), torchs, finished, 0.0, lambda line: any(text in line for text in wanted)
    )
    assert copied(tmp_path / "f", output.encode(), texts=wanted).decode() == torchs.getvalue()


def test_a_named_pipe_without_a_reader_is_no_place_for_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    errors: list[OSError] = []
    sink = Filtered("", FilteredFile(str(tmp_path / "pipe"), ("apple",), errors.append))
    sink.take(b"apple\n")
    sink.end()
    assert [error.errno for error in errors] == [errno.ENXIO]
