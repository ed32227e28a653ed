"""A process that has reached its limit of threads."""

import _thread
import threading

import pytest

from node_agent.kernel import threads


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread start, as at the limit of a container's processes."""

    def refuse(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    monkeypatch.setattr(threads, "start_new_thread", refuse)
    monkeypatch.setattr(threading, "_start_new_thread", refuse)
