"""Imports libraries without the modules that they import but an agent hardly uses, such as TLS.

Such a module is loaded on first use. A library's regular expressions are compiled on first use.
"""

import gc
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

_CO_COROUTINE = 0x80
"""Value of `inspect.CO_COROUTINE`."""


_OF_TRACEBACKS = ("traceback", "linecache")
"""Modules that a library uses only to show an exception. The second one loads `tokenize`, which compiles patterns."""


def begin() -> None:
    """Pause garbage collection during a program's imports. They do not make garbage, and each collection would scan
    them all.
    """
    gc.disable()
    with suppress(ImportError):  # another Python may lack a part of the finder: it then finds all modules itself
        from node_agent.kernel import quick_imports

        quick_imports.begin()
    import_msgspec()
    import_logging()


def end() -> None:
    """Resume garbage collection if `begin` has paused it, and exclude what has been imported."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def import_asyncio() -> None:
    """Import asyncio without TLS, which takes five megabytes, and without `inspect`, which takes seven milliseconds.

    `subprocess`, which asyncio imports, uses `locale` only for pipes of text, and `socket` uses `array` only to pass
    descriptors.
    """
    later = ("ssl", "asyncio.sslproto", "asyncio.staggered", "inspect", "locale", "array")
    _import_early("asyncio", later=(*later, *_OF_TRACEBACKS))


def import_logging() -> None:
    """Import logging without what only a traceback needs."""
    _import_early("logging", later=_OF_TRACEBACKS)


def import_msgspec() -> None:
    """Import msgspec without its schema part, which needs `typing` where `typing_extensions` is not installed.

    Its JSON schemas use `textwrap`. No message has a `decimal` or a `uuid`, and none is written as TOML or YAML.
    msgspec makes one `ForwardRef` only to learn which arguments the class takes. That would compile the argument, for
    which Python makes the 119 types of `ast`.
    """
    later = ("msgspec.inspect", "msgspec.toml", "msgspec.yaml", "textwrap", "decimal", "uuid", "datetime")
    with _replaced(typing, "ForwardRef", lambda name, is_class=False: None):
        _import_early("msgspec", later=later, absent=("typing_extensions",))


def import_msgpack() -> None:
    """Import msgpack. Of `datetime` it needs what is compiled into Python. Threads of a program may run meanwhile."""
    _import("msgpack", later=("datetime",))


def _is_coroutine_function(function: object) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & _CO_COROUTINE)


def _extract_stack(frame: FrameType | None = None, limit: int | None = None) -> Any:
    return import_module("traceback").extract_stack(frame or sys._getframe(1), limit)


def _variables(name: str) -> Mapping[str, object]:
    """Return the variables of a module, none if Python lacks it."""
    with suppress(ImportError):
        return vars(import_module(name))
    return {}


_ANSWERS: Mapping[str, Mapping[str, object]] = {
    "ssl": {"SSLSocket": ()},  # asyncio checks whether a socket is one; none can be before the class exists
    "inspect": {  # asyncio checks signal handlers with it, and describes them
        "iscoroutinefunction": _is_coroutine_function,
        "isfunction": lambda value: isinstance(value, FunctionType),
        "unwrap": lambda function: function,
    },
    "decimal": {"Decimal": type("Decimal", (), {})},  # msgspec looks for fields of these types
    "traceback": {"extract_stack": _extract_stack},  # asyncio calls it in debug mode
    "uuid": {"UUID": type("UUID", (), {}), "SafeUUID": SimpleNamespace(unknown=None)},
    "datetime": _variables("_datetime"),  # the same types, without their other form in Python
}
"""Names that are looked up in a module at every start, with answers that do not need the module."""


class _Later(ModuleType):
    """Placeholder for a module inside a library. It loads the module on first use."""

    def __getattr__(self, name: str) -> Any:
        imported = sys.modules.get(self.__name__)
        if imported in (self, None) and name in (answers := _ANSWERS.get(self.__name__, {})):
            return answers[name]
        _remove({self.__name__: self})  # if the library's import is not complete
        return getattr(import_module(self.__name__), name)


_compile = re.compile


class _LatePattern:
    """Regular expression of a library. It is compiled on first use. `re` and `isinstance` take it for a pattern."""

    __class__ = property(lambda self: re.Pattern)

    def __init__(self, *given: Any) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Any:
        return getattr(_compile(*self._given), name)  # `re` keeps what it has compiled

    def __reduce__(self) -> tuple[Any, ...]:
        return _compile, self._given


def _compile_later(pattern: Any, flags: Any = 0) -> Any:
    """Return a pattern that is compiled on first use, if it is given as text. It is in place of `re.compile`."""
    return (_LatePattern if type(pattern) in (str, bytes) else _compile)(pattern, flags)


@contextmanager
def _replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Replace a name of a module, unless the module makes it only on demand, as Python 3.14 does with `ForwardRef`."""
    if name not in vars(module):
        yield
        return
    kept = vars(module)[name]
    vars(module)[name] = value
    try:
        yield
    finally:
        vars(module)[name] = kept


def _import_early(library: str, *, later: tuple[str, ...], absent: tuple[str, ...] = ()) -> None:
    """Import a library while no other thread compiles patterns. Its own are compiled on first use."""
    with _replaced(re, "compile", _compile_later):
        _import(library, later=later, absent=absent)


def _import(library: str, *, later: tuple[str, ...], absent: tuple[str, ...] = ()) -> None:
    """Import a library, unless it is imported. Modules that are already imported stay."""
    if library in sys.modules:
        return
    stand_ins: dict[str, Any] = {name: _Later(name) for name in later} | dict.fromkeys(absent)
    stand_ins = {name: stand_in for name, stand_in in stand_ins.items() if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        import_module(library)
    finally:
        _remove(stand_ins)


def _remove(stand_ins: Mapping[str, ModuleType | None]) -> None:
    """Make the import system find the real modules again."""
    for name, stand_in in stand_ins.items():
        if sys.modules.get(name, ...) is stand_in:
            del sys.modules[name]
