"""Messages about contexts, the file that they are in, and the server's address that they give."""

from collections.abc import Sequence

from rdzv_protocol import paths
from rdzv_protocol.shell import quoted
from rdzv_protocol.words import flags
from rdzv_protocol.words.flags import did_you_mean


def no_context(name: str, path: str, known: Sequence[str]) -> str:
    return f"no context {name!r} in {path}{did_you_mean(name, known)}"


def add_context(name: str, known: Sequence[str]) -> str:
    there = ", ".join(known) or "none"
    return f"known contexts: {there}; add one: rdzvctl config set-context {quoted(name)} --endpoint HOST:PORT"


NO_HOME = "this user has no home folder for the configuration: set HOME, XDG_CONFIG_HOME or RDZV_CONFIG"


def cannot_write(path: str, why: str | None) -> str:
    return f"cannot write {path}: {why}" if why else f"cannot write {path}"


def cannot_read(path: str, why: str) -> str:
    return f"{path}: {why}"


NOT_UTF_8 = "the file is not UTF-8"


def writable_by_others(path: str) -> str:
    return (
        f"{path}: every user of this machine can change this file, and so redirect your token: chmod o-w {quoted(path)}"
    )


def bad_line(path: str, line: int, why: str) -> str:
    return f"{path}:{line}: {why}"


def unknown_key(key: str, known: Sequence[str]) -> str:
    return f"unknown key {key!r}{did_you_mean(key, known)}"


CURRENT_IS_NO_NAME = "current must be the name of a context, in quotes"
NO_TABLES = "contexts must be tables: [contexts.NAME]"


def of_context(name: str, why: str) -> str:
    return f"context {name}: {why}"


def no_text(key: str) -> str:
    return f"{key} must be a text in quotes, on one line"


def context_without_endpoint(name: str) -> str:
    return f'context {name} has no endpoint: give endpoint = "HOST:{paths.DEFAULT_PORT}"'


def no_current(name: str, known: Sequence[str]) -> str:
    return f"there is no context {name!r}{did_you_mean(name, known)}"


def no_contexts(path: str) -> str:
    return f"No contexts in {path}. Add one: rdzvctl config set-context NAME --endpoint HOST:PORT"


def none_is_current(path: str) -> str:
    return f"no current context in {path}; choose one: rdzvctl config use-context NAME"


def bad_name(name: str) -> str:
    return f"the name of a context must be printable, not {name!r}"


def where_is_server(name: str) -> str:
    return f"context {name} needs the address of its server: give --endpoint HOST:PORT"


def is_current(name: str) -> str:
    return f"{name} is the current context"


def is_set(name: str) -> str:
    return f"context {name} is set"


def is_deleted(name: str) -> str:
    return f"context {name} is deleted"


def written(path: str, done: str, *, comments_lost: bool) -> str:
    return f"{path}: {done}{f'; its comments are now in {path}~' if comments_lost else ''}."


def pair_incomplete(source: str) -> str:
    return f"{flags.belong_together('--tls-cert', '--tls-key')} ({source})"


def no_ca(source: str) -> str:
    return f"--tls-cert needs --tls-ca, too: FILE, or system ({source})"


def context_of(name: str, path: str) -> str:
    """The source of the server's address."""
    return f"context {name} of {path}"


NOTHING_GIVEN = "the default address, because you gave no --endpoint, RDZV_ENDPOINT or context"
