"""Every flag's value, from the command line or the environment, and who gave it."""

from collections.abc import Mapping, Sequence
from typing import Any

from node_agent.cli import environment_defaults
from node_agent.cli.flags import FLAGS
from node_agent.cli.parser import Parser
from node_agent.config import UsageError


class Asked:
    """Each value by its name, checked by itself: `asked["nnodes"]` is None where nobody said anything."""

    def __init__(self, given: Mapping[str, tuple[str, str]], script: str, args: Sequence[str]) -> None:
        """`given`: who gave a value, the flag as it was spelled or the variable, and its text. Raises `UsageError`."""
        self._sources = {dest: source for dest, (source, _) in given.items()}
        self._values = {dest: flag.default for dest, flag in FLAGS.items()}
        self._values.update((dest, _value(dest, source, text)) for dest, (source, text) in given.items())
        self.script = script
        self.args = tuple(args)
        """The script's arguments."""

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def source(self, name: str) -> str:
        """Who gave the value, or would have to."""
        return self._sources.get(name) or FLAGS[name].names[0]

    def is_flag(self, name: str) -> bool:
        """Whether the value stands on the command line."""
        return self._sources.get(name, "").startswith("-")


def read(argv: Sequence[str], environment: Mapping[str, str]) -> Asked:
    """What the command line asks for. Raises `UsageError`; `SystemExit` after --help and --version."""
    given = vars(Parser().read(argv))
    script, args = given.pop("script"), given.pop("args")
    missing = [dest for dest in FLAGS if dest not in given]
    return Asked({**given, **environment_defaults.texts(environment, missing)}, script, args)


def _value(dest: str, source: str, text: str) -> Any:
    try:
        return FLAGS[dest].read(text)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
