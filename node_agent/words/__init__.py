"""Sentences of the agent: each function makes one message to a person from its fields.

A module has the messages of one part of the agent, and is imported when its first message is made. A function's name is
the kind of the message, and its arguments are the fields. `tests/golden/messages.txt` shows every message; `python -m
tests.golden --write` updates that file.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import ModuleType

    from node_agent.words import agent as agent
    from node_agent.words import api as api
    from node_agent.words import cli as cli
    from node_agent.words import command as command
    from node_agent.words import connection as connection
    from node_agent.words import devices as devices
    from node_agent.words import failures as failures
    from node_agent.words import hints as hints
    from node_agent.words import hosting as hosting
    from node_agent.words import leaving as leaving
    from node_agent.words import output as output
    from node_agent.words import plan as plan
    from node_agent.words import progress as progress
    from node_agent.words import rendezvous as rendezvous
    from node_agent.words import schedulers as schedulers
    from node_agent.words import supervisor as supervisor
    from node_agent.words import survivors as survivors
    from node_agent.words import torchrun as torchrun
    from node_agent.words import torchx as torchx
    from node_agent.words import values as values
    from node_agent.words import workers as workers


def __getattr__(name: str) -> "ModuleType":
    from importlib import import_module

    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
