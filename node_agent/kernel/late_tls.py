"""asyncio without its TLS, which takes five megabytes and is loaded when a connection needs it."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_TLS = ("ssl", "asyncio.sslproto")


class _Later(ModuleType):
    """Stands in for a module inside asyncio. Loads the module when something in it is used."""

    def __getattr__(self, name: str) -> Any:
        if name == "SSLSocket" and self.__name__ not in sys.modules:
            return ()  # asyncio asks whether a socket is one: none is, before there is a class of them
        return getattr(import_module(self.__name__), name)


def import_asyncio() -> None:
    """Import asyncio so that it loads TLS at its first use. Does nothing if asyncio or TLS is imported already."""
    if not sys.modules.keys().isdisjoint({"asyncio", *_TLS}):
        return
    sys.modules.update((name, _Later(name)) for name in _TLS)
    try:
        import_module("asyncio")
    finally:
        for name in _TLS:
            del sys.modules[name]
