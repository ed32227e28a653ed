"""Messages about the file of `--ready-file`."""


def not_writable(source: str, path: str) -> str:
    """For an unusable `--ready-file`. `source`: the flag or variable."""
    return f"{source}: cannot write {path!r}: name a file in an existing folder that this user may write to"


def failed(path: str, why: str) -> str:
    """For a file that could not be written or removed."""
    return f"--ready-file {path}: {why}"
