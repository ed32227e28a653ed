"""Libraries without what they import and an agent hardly uses, such as TLS: it is loaded when it is used."""

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

_CO_COROUTINE = 0x80
"""`inspect.CO_COROUTINE`."""


def begin() -> None:
    """Begin with the imports of a program. They make no garbage, and each collection would look at all of them."""
    gc.disable()
    import_msgspec()


def end() -> None:
    """Collect garbage again, if this program has begun with imports, but do not look at what has been imported."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def import_asyncio() -> None:
    """Import asyncio without TLS, which takes five megabytes, and `inspect`, which takes seven milliseconds."""
    _import("asyncio", later=("ssl", "asyncio.sslproto", "inspect"))


def import_h11() -> None:
    """Import h11, which takes `inspect` for data classes without a docstring, of which it has none."""
    _import("h11", later=("inspect",))


def import_msgspec() -> None:
    """Import msgspec, which takes `typing` where there is no `typing_extensions`, without its part for schemas.

    `uuid`, which it needs, asks `platform` which system this is.
    """
    _import("msgspec", later=("platform", "msgspec.inspect"), absent=("typing_extensions",))


def _is_coroutine_function(function: object) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & _CO_COROUTINE)


_ANSWERS: Mapping[str, Mapping[str, object]] = {
    "ssl": {"SSLSocket": ()},  # asyncio asks whether a socket is one: none is, before there is a class of them
    "inspect": {  # asyncio asks about a handler of signals, which it describes as well
        "iscoroutinefunction": _is_coroutine_function,
        "isfunction": lambda value: isinstance(value, FunctionType),
        "unwrap": lambda function: function,
    },
    "platform": {"system": lambda: os.uname().sysname},
}
"""Names that are asked of a module at every start, with answers that need not load it."""


class _Later(ModuleType):
    """Stands in for a module inside a library. Loads the module when something in it is used."""

    def __getattr__(self, name: str) -> Any:
        answers = _ANSWERS.get(self.__name__, {})
        if name in answers and sys.modules.get(self.__name__, self) is self:
            return answers[name]
        _remove({self.__name__: self})  # if the library is just being imported
        return getattr(import_module(self.__name__), name)


def _import(library: str, *, later: tuple[str, ...], absent: tuple[str, ...] = ()) -> None:
    """Import a library. Modules that are imported already stay; does nothing if the library itself is."""
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
    """Have the import system find the modules themselves."""
    for name, stand_in in stand_ins.items():
        if sys.modules.get(name, ...) is stand_in:
            del sys.modules[name]
