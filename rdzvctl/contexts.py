"""Contexts: servers and credentials by name, in a configuration file; and the target of a command.

    current = "lab"

    [contexts.lab]
    endpoint = "a:29400,b:29400"
    token_file = "/home/me/lab.token"
    tls_ca = "/home/me/lab-ca.pem"

The first of these that is set names the server of a command: its flags, `--context`, the environment, the current
context. Otherwise it is this machine. The credentials come from the same source as the endpoint, so that no token is
sent to another server. Flags may add credentials to any source.
"""

import os
import re
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from rdzv_protocol import words as protocol_words
from rdzv_protocol.flag_values import Endpoint, endpoints
from rdzv_protocol.paths import DEFAULT_PORT

from rdzvctl import words
from rdzvctl.errors import BadInput

FIELDS = ("endpoint", "token_file", "tls_ca", "tls_cert", "tls_key")
"""Keys of a context. Flags have the same names, and variables the same names as `RDZV_...`."""
THIS_MACHINE = f"localhost:{DEFAULT_PORT}"
MODE = 0o600


class Target(NamedTuple):
    """Servers that a command asks, and the credentials for them."""

    endpoints: tuple[Endpoint, ...]
    source: str
    """Source of the servers' addresses, as text for people: a flag, a variable or a context."""
    token_file: str | None = None
    token_source: str = ""
    """Flag, variable or context that names the token's file."""
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


class Contexts(NamedTuple):
    """Content of the configuration file."""

    path: str
    current: str = ""
    contexts: Mapping[str, Mapping[str, str]] = {}
    has_comments: bool = False
    """Whether the file has comments, which `write` loses: it keeps the old file, with a ~ at the end of its name."""

    def get(self, name: str) -> Mapping[str, str]:
        """Return the context of this name. Raises `BadInput` if there is none."""
        if not self.path:
            raise BadInput(words.contexts.NO_HOME)
        if name not in self.contexts:
            known = [*self.contexts]
            raise BadInput(words.contexts.no_context(name, self.path, known), words.contexts.add_context(name, known))
        return self.contexts[name]

    def write(self) -> None:
        """Replace the file; only its user may read the new one. Raises `BadInput` if it cannot be written."""
        blocks = [f"current = {_quoted(self.current)}\n"] if self.current else []
        for name, fields in self.contexts.items():
            lines = "".join(f"{key} = {_quoted(value)}\n" for key, value in fields.items())
            blocks.append(f"[contexts.{_quoted(name)}]\n{lines}")
        temporary = f"{self.path}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(self.path) or ".", mode=0o700, exist_ok=True)
            if self.has_comments:
                os.replace(self.path, f"{self.path}~")
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE), "w", encoding="utf-8") as file:
                file.write("\n".join(blocks))
            os.replace(temporary, self.path)
        except OSError as error:
            raise BadInput(words.contexts.cannot_write(self.path, error.strerror)) from None


def path_of(environment: Mapping[str, str]) -> str:
    """Return the path of the configuration file: `RDZV_CONFIG`, else below `XDG_CONFIG_HOME`; empty without a home.

    A relative `XDG_CONFIG_HOME` has no effect, as XDG's specification asks.
    """
    if path := environment.get("RDZV_CONFIG"):
        return path
    home = environment.get("XDG_CONFIG_HOME", "")
    home = home if os.path.isabs(home) else os.path.expanduser("~/.config")
    if home.startswith("~/"):  # Python finds no home; the path would be relative to the working folder
        return ""
    return os.path.join(home, "rdzv", "config.toml")


def load(path: str) -> Contexts:
    """Return the content of the file; no contexts if it does not exist.

    Raises `BadInput` with the file and the line.
    """
    try:
        with open(path, encoding="utf-8") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read()
    except FileNotFoundError:
        return Contexts(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or words.contexts.NOT_UTF_8
        raise BadInput(words.contexts.cannot_read(path, why)) from None
    if mode & stat.S_IWOTH:
        raise BadInput(words.contexts.writable_by_others(path))
    return _checked(path, text, _parsed(path, text))


def choose(given: Mapping[str, str], environment: Mapping[str, str]) -> Target:
    """Return the target that flags, environment and contexts name. `given`: flags by name. Raises `BadInput`."""
    fields, source, is_context = _chosen(given, environment)
    target = check(source, {**fields, **{key: given[key] for key in FIELDS if key in given}})
    if target.token_file is None:
        return target
    of_fields = source if is_context else "RDZV_TOKEN_FILE"
    return target._replace(token_source="--token-file" if "token_file" in given else of_fields)


def check(source: str, fields: Mapping[str, str]) -> Target:
    """Return the target from these fields, if they fit together. Raises `BadInput`, which names their source."""
    if ("tls_cert" in fields) != ("tls_key" in fields):
        raise BadInput(words.contexts.pair_incomplete(source))
    if "tls_cert" in fields and "tls_ca" not in fields:
        raise BadInput(words.contexts.no_ca(source))
    if "tls_ca" not in fields and "https://" in fields["endpoint"]:
        raise BadInput(protocol_words.flags.https_without_ca(source, "--tls-ca"))
    try:
        found = endpoints(fields["endpoint"], DEFAULT_PORT)
    except ValueError as error:
        raise BadInput(protocol_words.flags.bad_value(source, str(error))) from None
    return Target(tuple(found), source, **{key: value for key, value in fields.items() if key != "endpoint"})


def _chosen(given: Mapping[str, str], environment: Mapping[str, str]) -> tuple[dict[str, str], str, bool]:
    """Return the fields of the source that names the endpoint, the source as text, and whether it is a context."""
    variables = {key: value for key in FIELDS if (value := environment.get(f"RDZV_{key.upper()}", "").strip())}
    if "endpoint" in given:
        without_place = {key: value for key, value in variables.items() if key != "endpoint"}
        return (without_place if "context" not in given else {}), "--endpoint", False
    if "context" not in given and "endpoint" in variables:
        return variables, "RDZV_ENDPOINT", False
    file = load(path_of(environment))
    if name := given.get("context") or file.current:
        return dict(file.get(name)), words.contexts.context_of(name, file.path), True
    return {**variables, "endpoint": THIS_MACHINE}, words.contexts.NOTHING_GIVEN, False


def _parsed(path: str, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        line = re.search(r"line (\d+)", where)
        at = int(line[1]) if line else text.count("\n") + 1
        raise BadInput(words.contexts.bad_line(path, at, what)) from None


def _checked(path: str, text: str, found: Mapping[str, Any]) -> Contexts:
    contexts, current = found.get("contexts", {}), found.get("current", "")
    for key in found:
        if key not in ("current", "contexts"):
            raise _bad(path, text, key, words.contexts.unknown_key(key, ("current", "contexts")))
    if not isinstance(current, str):
        raise _bad(path, text, "current", words.contexts.CURRENT_IS_NO_NAME)
    if not isinstance(contexts, dict) or not all(isinstance(each, dict) for each in contexts.values()):
        raise _bad(path, text, "contexts", words.contexts.NO_TABLES)
    for name, fields in contexts.items():
        for key, value in fields.items():
            if key not in FIELDS:
                why = words.contexts.unknown_key(key, FIELDS)
                raise _bad(path, text, key, words.contexts.of_context(name, why))
            if not isinstance(value, str) or not value.isprintable():
                raise _bad(path, text, key, words.contexts.of_context(name, words.contexts.no_text(key)))
        if "endpoint" not in fields:
            raise _bad(path, text, name, words.contexts.context_without_endpoint(name))
    if current and current not in contexts:
        raise _bad(path, text, "current", words.contexts.no_current(current, [*contexts]))
    has_comments = any(line.lstrip().startswith("#") for line in text.splitlines())
    return Contexts(path, current, contexts, has_comments)


def _bad(path: str, text: str, word: str, what: str) -> BadInput:
    """Return an error at the first line with the word: the TOML parser does not report lines for valid TOML."""
    lines = text.splitlines()
    line = next((number for number, each in enumerate(lines, 1) if re.search(rf"\b{re.escape(word)}\b", each)), 1)
    return BadInput(words.contexts.bad_line(path, line, what))


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)
