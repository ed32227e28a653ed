"""Texts of a bundle made fit for strangers: without secrets and, on request, without names. Pure functions.

The texts may be a worker's output, so a word may be as long as a log. Parts of the patterns that could begin at many
places of one word have a greatest length. Otherwise the time would grow with the square of the word's length.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from typing import Any

GONE = "[redacted]"
LEAST_SECRET = 6
"""Length of the shortest known secret that is searched for in texts."""
SECRET_WORDS = (
    "token|secret|passw(?:or)?d|passwd|passphrase|pwd|api_?key|access_?key|private_?key|encryption_?key|signing_?key"
    "|credential|cookie|authorization|signature|connection_?string|dsn|webhook"
)
"""Parts of names whose values are secret."""
HARMLESS = (
    "RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|ROLE_NAME|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_WORLD_SIZE|ROLE_WORLD_SIZE"
    "|MASTER_ADDR|MASTER_PORT|OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES|COLUMNS|LINES|TERM|LANG|(?:NCCL|GLOO|TORCH|CUDA"
    "|PYTORCH|TORCHELASTIC|PYTHON|SLURM|OMPI|PMIX?)_?[A-Z0-9_]*"
)
"""Environment variables whose values are shown, unless their names look like names of secrets."""

_SECRET_NAME = re.compile(f"(?i)(?:{SECRET_WORDS.replace('_?', '[-_]?')})s?$|(?i:(?:^|[-_])(?:auth|key|pat)$)")
_HARMLESS = re.compile(HARMLESS)
_NAMED = re.compile(
    r"""(?<![\w-])(?P<flag>--?)?(?P<name>[A-Za-z_][\w.-]{0,255})(?P<quote>["']?)(?P<sign>\s*[:=]\s*|\ +)"""
    r"""(?=[^\s,;&(){}\[\]])"""
)
"""A name before its value: NAME=value, "name": "value", name: value, --name value."""
_VALUE = re.compile(r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[^\s,;&"'(){}\[\]]+""")
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)")
_END_OF_KEY_BLOCK = re.compile(r"\A(?:(?!-----BEGIN)[\s\S])*?-----END [A-Z0-9 ]*PRIVATE KEY-----")
_KNOWN_FORMS = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}|gh[a-z]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}"
    r"|sk-[\w-]{16,}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,}|pypi-[\w-]{16,}|npm_[A-Za-z0-9]{30,}"
    r"|eyJ[\w-]{8,4095}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|(?=[A-Fa-f0-9]*\d)[A-Fa-f0-9]{32,}"
    r"|(?=[\w+-]{0,255}[a-z])(?=[\w+-]{0,255}[A-Z])(?=[\w+-]{0,255}\d)[A-Za-z0-9+-]{36,}={0,2}"
    r")(?![A-Za-z0-9_])"
)
"""Tokens with a known form; at the end, any long hexadecimal number and any long mixture."""
_BEARER = re.compile(r"(?i)\b(bearer|basic|negotiate)\s+[A-Za-z0-9._~+/-]{6,}=*")
_BASE64_LINE = re.compile(r"(?m)^(?=[^\n]*\d)(?=[^\n]*[A-Z])[A-Za-z0-9+][A-Za-z0-9+/]{58,}={0,2}$")
_IN_URL = re.compile(r"(?<=://)[^\s/@'\"]+(?=@)")


class Redactor:
    """Removes secrets from texts. `known`: known secrets, such as the token that was just used."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        texts = sorted({text for text in known if len(text) >= LEAST_SECRET}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, texts))) if texts else None

    def text(self, text: str) -> str:
        """Return the text without secrets, and without the values of environment variables."""
        if self._known:
            text = self._known.sub(GONE, text)
        for pattern in (_END_OF_KEY_BLOCK, _KEY_BLOCK, _IN_URL, _BASE64_LINE):
            text = pattern.sub(GONE, text)
        text = _BEARER.sub(rf"\1 {GONE}", text)
        return _KNOWN_FORMS.sub(GONE, _named_values(text))

    def value(self, value: Any) -> Any:
        """Return the same JSON value with such texts.

        The lines of a list count as one text, so a secret may span lines.
        """
        return _walked(value, self.text, lambda name: is_secret_name(name))


def is_secret_name(name: str) -> bool:
    """Return whether the value of a variable, flag or field of this name is probably a secret."""
    return _SECRET_NAME.search(name) is not None


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return the values of environment variables whose names look like names of secrets."""
    return [value for name, value in environment.items() if is_secret_name(name)]


def _named_values(text: str) -> str:
    """Return the text without the values of secrets' names, and of environment variables."""
    made, at = [], 0
    while found := _NAMED.search(text, at):
        begin = found.end()
        value = _VALUE.match(text, begin) if _may_hide(found) else None
        made.append(text[at:begin])
        at = begin
        if value and not _is_harmless(found["name"], value[0]):
            quote = value[0][0] if value[0][0] in "\"'" else ""
            made.append(f"{quote}{GONE}{quote}")
            at = value.end()
    return "".join((*made, text[at:]))


_NO_SECRETS = frozenset(("none", "null", "true", "false", "bearer", "basic"))
_COUNTS = re.compile(r"(?i)(?:tokens|keys|key)$")
"""Names of numbers, such as `max_tokens`."""


def _may_hide(found: re.Match[str]) -> bool:
    """Return whether the value of this name is hidden, unless it is harmless."""
    name, has_sign = found["name"], bool(found["sign"].strip())
    if not has_sign and not found["flag"]:
        return False
    is_variable = name.isupper() and len(name) > 2 and (found["sign"] == "=" or bool(found["quote"]))
    return is_secret_name(name) or (is_variable and not _HARMLESS.fullmatch(name))


def _is_harmless(name: str, value: str) -> bool:
    is_count = value.isdigit() and _COUNTS.search(name) is not None
    return value.lower() in _NO_SECRETS or value.startswith(GONE) or is_count


def _walked(value: Any, change: Callable[[str], str], is_secret: Callable[[str], bool] = lambda name: False) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            key: GONE if isinstance(each, str) and each and is_secret(key)
            else each if key in KINDS else _walked(each, change, is_secret)
            for key, each in value.items()
        }  # fmt: skip
    if isinstance(value, list | tuple):
        if value and all(isinstance(each, str) for each in value):
            return change("\n".join(value)).split("\n")
        return [_walked(each, change, is_secret) for each in value]
    return value


KINDS = frozenset(("phase", "state", "kind", "cause", "on_hang", "scale_up", "rank_policy", "version", "stream"))
"""Fields whose values are words of these programs, which may be equal to names."""


# Names.

_SYSTEM_FOLDERS = re.compile(
    r"bin|boot|dev|etc|home|lib|lib64|media|mnt|opt|proc|root|run|sbin|srv|sys|tmp|usr|var|local|share|site-packages"
    r"|dist-packages|Users|private|workspace|scratch|data|logs|log|shm"
)
_OWN_FILES = re.compile(
    r"attempt_\d+|\d+|stdout\.log|stderr\.log|error\.json|evidence_\d+|rank_\d+\.\w+\.txt|python\d[\d.]*|flight_recorder"
    r"|node-agent[\w.-]*|torchrun|python|Python|nccl_ras\.txt"
)
_PATH = re.compile(
    r"(?<![\w.:/~\]])(?:~?/)(?:[\w.@%+=,-]{1,255}/){0,63}[\w.@%+=-]{0,255}[\w@%+=-]"
    r"|(?<![\w./])(?:[\w-]{1,255}/){1,63}[\w-]{1,255}\.\w+"
)
_LIBRARY = re.compile(r"(?:.*/)?(?:site-packages|dist-packages|python\d+\.\d+)/")
_URL = re.compile(r"(?<![\w])([a-z][a-z0-9+.-]{0,63})://([^\s/'\"<>]*)(/[^\s'\"<>]*)?")
_EMAIL = re.compile(r"(?<![\w.+-])([\w.+-]+)@([\w-]+(?:\.[\w-]+)*)")
_V4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]?\d)")
_V6 = re.compile(r"(?<![\w:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?:%\w+)?(?![\w:])")
_USER_OF_PATH = re.compile(r"/(?:home|Users)/([\w.-]+)")
_NO_USERS = frozenset(("", "admin", "localhost", "operator", "the server"))
SHORT = 3
"""Names with fewer characters are replaced in texts only after `node` or `run`: they are parts of common sentences."""


class Anonymizer:
    """Replaces names with numbered ones, each name with the same one everywhere.

    Call `learn` with every text before `text` replaces any, since a file may also be named without its folder.
    """

    def __init__(self, **names: Iterable[str]) -> None:
        """`names`: known names by kind: run, node, host, user."""
        self._given: dict[str, str] = {}
        self._in_paths: dict[str, str] = {}
        """Names of folders and files, which may be common words: they are replaced in paths only."""
        self._counts: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None
        for kind, each in names.items():
            for name in each:
                self._add(kind, name)

    def _add(self, kind: str, name: str) -> str:
        if not name or name in ("localhost", "127.0.0.1", "::1"):
            return name
        if kind == "user" and name in _NO_USERS:
            return name
        if _is_address(name):
            kind = "address"
            if _stays(name):
                return name
        if name not in self._given:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._given[name] = f"{kind}-{self._counts[kind]}"
            self._pattern = None
        return self._given[name]

    def learn(self, text: str) -> None:
        """Learn the users and the files that the text names."""
        for user in _USER_OF_PATH.findall(text):
            self._add("user", user)
        self._rewritten(text)

    def learn_value(self, value: Any) -> None:
        """Learn from the texts of a JSON value."""

        def learn(text: str) -> str:
            self.learn(text)
            return text

        _walked(value, learn)

    def value(self, value: Any) -> Any:
        """Return the JSON value with other names."""
        return _walked(value, self.text)

    def text(self, text: str) -> str:
        """Return the text with other names."""
        if text in self._given:
            return self._given[text]
        return self._known(self._rewritten(text))

    def _rewritten(self, text: str) -> str:
        """Return the text with other URLs, e-mail addresses, paths and IP addresses."""
        text = _URL.sub(self._url, text)
        text = _EMAIL.sub(lambda found: f"{self._add('user', found[1])}@{self._host(found[2])}", text)
        text = _PATH.sub(lambda found: self._path(found[0]), text)
        for pattern in (_V4, _V6):
            text = pattern.sub(self._address, text)
        return text

    def _address(self, found: re.Match[str]) -> str:
        return self._add("address", found[0]) if _is_address(found[0]) else found[0]

    def _url(self, found: re.Match[str]) -> str:
        host, colon, port = found[2].rpartition(":")
        if not port.isdigit():
            host, colon, port = found[2], "", ""
        path = self._path(found[3]) if found[3] and found[3] != "/" else found[3] or ""
        return f"{found[1]}://{self._host(host)}{colon}{port}{path}"

    def _host(self, host: str) -> str:
        return self._given.get(host) or self._add("host", host)

    def _path(self, path: str) -> str:
        """Return the path with other names of folders and files, except below a library's folder."""
        if path in ("/", "~/") or path.startswith(("/proc/self", "/dev/", "/v1/")):
            return path
        library = _LIBRARY.match(path)
        own, kept = (path[: library.end()], path[library.end() :]) if library else (path, "")
        *folders, last = own.split("/")
        return "/".join([*(self._part(each, "folder") for each in folders), self._part(last, "file")]) + kept

    def _part(self, name: str, kind: str) -> str:
        if name in ("", "~", ".", "..") or _SYSTEM_FOLDERS.fullmatch(name) or _OWN_FILES.fullmatch(name):
            return name
        if name in self._given:
            return self._given[name]
        if name not in self._in_paths:
            stem, dot, ending = name.rpartition(".")
            is_file = kind == "file" and bool(stem) and ending.isalnum() and len(ending) < 7
            self._counts[kind] = number = self._counts.get(kind, 0) + 1
            self._in_paths[name] = f"file-{number}{dot}{ending}" if is_file else f"{kind}-{number}"
            if is_file:  # texts also name a file without its folder
                self._given[name] = self._in_paths[name]
                self._pattern = None
        return self._in_paths[name]

    def _known(self, text: str) -> str:
        """Return the text with known names replaced."""
        if self._pattern is None:
            long = sorted((re.escape(name) for name in self._given if len(name) >= SHORT), key=len, reverse=True)
            short = "|".join(re.escape(name) for name in self._given if len(name) < SHORT) or r"(?!)"
            self._pattern = re.compile(
                rf"(?<![A-Za-z0-9])(?:{'|'.join(long) or '(?!)'})(?![A-Za-z0-9])"
                rf"|(?:(?<=\bnode\ )|(?<=\bruns\ )|(?<=\brun\ ))(?:{short})(?![\w-])"
            )
        return self._pattern.sub(lambda found: self._given[found[0]], text)


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _stays(text: str) -> bool:
    """Return whether the address reveals nothing about a place."""
    address = ip_address(text.partition("%")[0])
    return address.is_loopback or address.is_unspecified
