"""Imports modules with up-to-date bytecode in half of the time that Python's own finder takes.

Python's finder supports many kinds of modules in many folders, and looks for each of them. Nearly all modules of an
agent are of one kind. The others are Python's own modules of machine code, which are all in one folder.
"""

import os
import sys
from _imp import _fix_co_filename, extension_suffixes  # type: ignore[attr-defined]
from collections.abc import Sequence
from importlib._bootstrap import ModuleSpec
from importlib._bootstrap_external import MAGIC_NUMBER, ExtensionFileLoader, SourceFileLoader
from marshal import loads
from types import CodeType, ModuleType

PACKAGES = frozenset({
    "node_agent", "rdzv_protocol", "rdzv_server", "asyncio", "concurrent", "httptools", "msgpack", "msgspec",
})  # fmt: skip
"""Packages whose modules are found this way. A name in their folders belongs to only one file or folder."""
PYTHONS_OWN = sys.stdlib_module_names.difference(sys.builtin_module_names)
"""Modules that are found in Python's folder, before the user's folders: a `queue.py` there would break the agent."""
_FOLDER = os.path.dirname(os.__file__)
_MACHINE_CODE_FOLDER = f"{sys.base_exec_prefix}/{sys.platlibdir}/{os.path.basename(_FOLDER)}/lib-dynload"
_SUFFIX = extension_suffixes()[0]
_BYTECODE = f".{sys.implementation.cache_tag}.pyc"
_CHUNK = 1 << 16
"""Bytes that one read asks for: more than nearly all files contain."""


def _names_of_machine_code() -> frozenset[str]:
    try:
        files = os.listdir(_MACHINE_CODE_FOLDER) if _MACHINE_CODE_FOLDER in sys.path else ()
    except OSError:
        return frozenset()
    return frozenset(file.removesuffix(_SUFFIX) for file in files if file.endswith(_SUFFIX))


MACHINE_CODE = _names_of_machine_code()
"""Modules of machine code in Python's folder for them; none if this Python keeps them elsewhere."""


def begin() -> None:
    """Find modules this way, unless the interpreter was told to keep its bytecode elsewhere."""
    if not sys.flags.optimize and sys.pycache_prefix is None and QuickFinder not in sys.meta_path:
        sys.meta_path.insert(0, QuickFinder)


class QuickFinder:
    """Finder of modules that have up-to-date bytecode, in some packages and in Python's folder.

    Python's own finder finds all other modules.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the specification that Python's finder would return, with the code; None if this finder cannot."""
        package, _, stem = name.rpartition(".")
        if not package and name in PYTHONS_OWN:
            if name in MACHINE_CODE:
                return _machine_code(name)
            folder = _FOLDER
        elif path and len(path) == 1 and package.partition(".")[0] in PACKAGES:
            folder = path[0]
        else:
            return None
        try:
            try:
                return _specification(name, folder, stem)
            except FileNotFoundError:
                return _specification(name, package := f"{folder}/{stem}", "__init__", package)
        except OSError:
            return None


def _machine_code(name: str) -> ModuleSpec:
    path = f"{_MACHINE_CODE_FOLDER}/{name}{_SUFFIX}"
    spec = ModuleSpec(name, ExtensionFileLoader(name, path), origin=path)
    spec.has_location = True
    return spec


def _specification(name: str, folder: str, stem: str, package: str = "") -> ModuleSpec | None:
    """Return the specification of a file's module; None if the file has changed since it was compiled.

    `package`: its folder, if the module is a package. Raises `OSError`.
    """
    cached, source = f"{folder}/__pycache__/{stem}{_BYTECODE}", f"{folder}/{stem}.py"
    data, status = _content(cached), os.stat(source)
    if data[:16] != _header(int(status.st_mtime), status.st_size):
        return None
    code = loads(memoryview(data)[16:])
    _fix_co_filename(code, source)  # the file may have moved since it was compiled: Python's loader does the same
    spec = ModuleSpec(name, _Loader(name, source, code), origin=source)
    spec.has_location, spec.cached = True, cached
    spec.submodule_search_locations = [package] if package else None
    return spec


def _header(modified_at: int, size: int) -> bytes:
    """Return the beginning of a file with bytecode that was compiled from source of this time and size."""
    return MAGIC_NUMBER + ((modified_at & 0xFFFF_FFFF) << 32 | (size & 0xFFFF_FFFF) << 64).to_bytes(12, "little")


def _content(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = chunk = os.read(file, _CHUNK)
        while len(chunk) == _CHUNK:
            data += (chunk := os.read(file, _CHUNK))
        return data
    finally:
        os.close(file)


class _Loader(SourceFileLoader):
    """Loader of source that already has the module's code."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code: CodeType | None = code

    def get_code(self, fullname: str) -> CodeType | None:
        code, self._code = self._code, None
        return code or super().get_code(fullname)
