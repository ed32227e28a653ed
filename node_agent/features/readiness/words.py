"""What an agent tells of the file of `--ready-file`."""


def not_writable(source: str, path: str) -> str:
    """Refuses the flag, which `source` names."""
    return f"{source}: cannot write {path!r}: name a file in an existing folder that this user may write to"


def failed(path: str, why: str) -> str:
    """Told if the file could not be written or removed."""
    return f"--ready-file {path}: {why}"
