"""The functions that make messages, and their results for the examples."""

import inspect
import pkgutil
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import rdzv_protocol

import node_agent
import rdzv_server
import rdzvctl
from tests.golden.values import examples_of

FILE = Path(__file__).parent / "messages.txt"
PACKAGES = (rdzv_protocol, rdzv_server, node_agent, rdzvctl)


def modules() -> list[ModuleType]:
    """Return the modules of sentences: those called `words`, and those in a folder called `words`."""
    found = (each for package in PACKAGES for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    return [
        import_module(name)
        for name in sorted(each.name for each in found if not each.ispkg)
        if "words" in name.split(".")
    ]


def makers(module: ModuleType) -> dict[str, Callable[..., str] | str]:
    """Return the functions and constants of a module of sentences, by name and in order."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and ((inspect.isfunction(value) and value.__module__ == module.__name__) or isinstance(value, str))
    }


def messages(maker: Callable[..., str] | str) -> Iterable[str]:
    """Return the messages of all examples of a maker."""
    return [maker] if isinstance(maker, str) else dict.fromkeys(maker(**fields) for fields in examples_of(maker))


def text() -> str:
    """Return the text for `messages.txt`."""
    parts = []
    for module in modules():
        if of_module := makers(module):
            parts.append(f"# {module.__name__}\n")
            for name, maker in of_module.items():
                lines = "\n".join(f"    {line}".rstrip() for each in messages(maker) for line in each.splitlines())
                parts.append(f"{name}\n{lines}\n")
    return "\n".join(parts)
