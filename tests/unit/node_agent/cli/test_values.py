"""What each kind of value looks like."""

import pytest

from node_agent.cli import values
from node_agent.cli.values import (
    filters,
    known_signals,
    node_counts,
    ranks,
    seconds,
    signals,
    streams,
    switch,
    template,
    whole,
)
from node_agent.core.log_options import Std


@pytest.mark.parametrize("text", ["1", "true", "True", "YES", "on", "t", "y", "2", " 1 "])
def test_words_and_digits_for_yes(text):
    assert switch(text) is True


@pytest.mark.parametrize("text", ["0", "false", "No", "OFF", "f", "n", "00"])
def test_words_and_digits_for_no(text):
    assert switch(text) is False


@pytest.mark.parametrize("text", ["", "maybe", "1.0", "yess"])
def test_neither_yes_nor_no(text):
    with pytest.raises(ValueError, match="true, yes, on, 1 or false, no, off, 0, not "):
        switch(text)


@pytest.mark.parametrize("text", ["2:", ":2", "", "a", "1:2:3", "0", "3:1", "-1"])
def test_nodes_that_make_no_sense(text):
    with pytest.raises(ValueError, match=r"nodes|MIN"):
        node_counts(text)


def test_a_word_in_place_of_a_number():
    read = whole(1, 8, ("auto", "gpu"))
    assert (read("auto"), read("8")) == ("auto", 8)
    with pytest.raises(ValueError, match="a whole number from 1 to 8, auto or gpu, not 'cpu'"):
        read("cpu")


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "", "1s", "1e7"])
def test_seconds_that_are_none(text):
    with pytest.raises(ValueError, match="a number of seconds from 0 to 1e"):
        seconds()(text)


def test_seconds_may_have_a_fraction():
    assert seconds()("2.5") == 2.5


# Output.


@pytest.mark.torch
@pytest.mark.parametrize("text", ["0", "1", "2", "3", "0:1", "0:3,1:0,2:1,3:2", "9:3,9:1"])
def test_streams_are_read_as_torch_reads_them(text):
    multiprocessing = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    assert streams(text) == multiprocessing.Std.from_str(text)


@pytest.mark.torch
@pytest.mark.parametrize("text", ["", "4", "-1", "03", "a", "0:4", "0:1,", ",0:1", "0:1:2", "a:1", "-1:1", "0: 1"])
def test_streams_that_torch_refuses_are_refused(text):
    multiprocessing = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    with pytest.raises(ValueError):
        multiprocessing.Std.from_str(text)
    with pytest.raises(ValueError, match=r"0 \(none\), 1 \(stdout\), 2 \(stderr\) or 3 \(both\), or a map"):
        streams(text)


def test_a_map_takes_ranks_of_several_digits():
    assert streams("0:1,12:3") == {0: Std.OUT, 12: Std.ALL}


@pytest.mark.parametrize("text", ["", "  "])
def test_no_ranks_are_all_of_them(text):
    assert ranks(text) is None


def test_ranks():
    assert ranks("0,2, 11") == {0, 2, 11}


@pytest.mark.parametrize("text", ["a", "0,", "-1", "0;1"])
def test_ranks_that_are_none(text):
    with pytest.raises(ValueError, match="ranks, such as 0,1,2, not"):
        ranks(text)


@pytest.mark.torch
@pytest.mark.parametrize("text", ["apple,orange", "a,,b", "a,,b,c", "one", "x,,,y", "a,"])
def test_filters_are_read_as_torch_reads_them(text):
    pytest.importorskip("torch")
    from torch.distributed.run import get_args_parser

    args = get_args_parser().parse_args(["--duplicate-stdout-filters", text, "train.py"])
    assert list(filters(text)) == args.duplicate_stdout_filters


def test_no_filter_and_an_empty_one_which_every_line_passes():
    assert filters("") == ()
    assert filters("a,") == ("a", "")


def test_a_template_may_use_what_a_line_has():
    assert template("[${role_name}${rank}/${local_rank} $$] ") == "[${role_name}${rank}/${local_rank} $$] "


@pytest.mark.parametrize(("text", "why"), [("${rnak}", r"there is no \$\{rnak\}"), ("$", r"write \$\$ for a dollar")])
def test_a_template_that_would_not_be_filled_in(text, why):
    with pytest.raises(ValueError, match=why):
        template(text)


# Signals.


def test_signals():
    assert signals("SIGTERM, SIGUSR1,SIGTERM") == ("SIGTERM", "SIGUSR1")


def test_signals_that_are_none():
    assert known_signals(signals("TERM,SIGTERM,SIGNOPE,15,SIG_IGN,")) == ("SIGTERM",)


@pytest.mark.parametrize("name", values.UNCATCHABLE)
def test_signals_that_nobody_can_catch(name):
    with pytest.raises(ValueError, match=f"{name} cannot be caught"):
        signals(f"SIGTERM,{name}")
