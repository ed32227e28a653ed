"""What log folders are called, and how a line says whose it is."""

PREFIX_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""The environment variable with torchrun's template of a teed line's prefix."""
PREFIX_NAMES = ("role_name", "rank", "local_rank", "node_id", "group_rank")
"""What `${...}` may name in a template; the first three are torchrun's."""

LONGEST_NAME = 120
"""Bytes: a file name has 255 at most, and the folder's has a random part besides."""
_PLAIN = frozenset("-_.,:;+=@%~")


def default_prefix(role: str, local_rank: int) -> str:
    """What torchrun puts before a teed line."""
    return f"[{role}{local_rank}]:"


def prefix(template: str, **names: str | int) -> str:
    """The template filled in. As under torchrun, what is not known stays as it is."""
    from string import Template

    return Template(template).safe_substitute(names)


def folder_name(run_id: str) -> str:
    """The run id as the beginning of a folder's name: readable, safe in a shell, and never a way out of the folder."""
    name = "".join(character if character.isalnum() or character in _PLAIN else "_" for character in run_id)
    if name.startswith((".", "-", "~")):
        name = "_" + name[1:]
    return name.encode()[:LONGEST_NAME].decode(errors="ignore")
