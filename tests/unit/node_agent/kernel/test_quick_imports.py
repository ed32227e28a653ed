"""The agent's own finder of modules, compared with Python's."""

import os
import py_compile
import subprocess
import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from importlib.util import module_from_spec
from inspect import getsource
from pathlib import Path
from types import ModuleType

import pytest

from node_agent.kernel.quick_imports import MACHINE_CODE, PACKAGES, PYTHONS_OWN, QuickFinder
from tests.support.cases import case

NAME = "node_agent.made_up"
SOURCE = "NUMBER = 1\n\n\ndef twice():\n    return 2 * NUMBER\n"


@pytest.fixture(params=["made_up.py", "made_up/__init__.py"])
def source(tmp_path, request) -> Path:
    """Source of a module or package, with bytecode."""
    file = tmp_path / request.param
    file.parent.mkdir(exist_ok=True)
    file.write_text(SOURCE)
    py_compile.compile(str(file))
    return file


def _found(folder: Path, name: str = NAME) -> ModuleSpec | None:
    return QuickFinder.find_spec(name, [str(folder)])


def _loaded(spec: ModuleSpec | None) -> ModuleType:
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_module_is_what_pythons_finder_makes_of_it(source, tmp_path, monkeypatch) -> None:
    ours, pythons = _found(tmp_path), PathFinder.find_spec(NAME, [str(tmp_path)])
    assert ours and pythons and ours.loader and pythons.loader
    for name in ("name", "origin", "cached", "has_location", "submodule_search_locations", "parent", "loader_state"):
        assert getattr(ours, name) == getattr(pythons, name), name
    assert isinstance(ours.loader, type(pythons.loader))
    loaded, expected = _loaded(ours), _loaded(pythons)
    assert vars(loaded).keys() == vars(expected).keys()
    for name in ("__name__", "__package__", "__file__", "__cached__", "NUMBER"):
        assert getattr(loaded, name) == getattr(expected, name), name
    assert loaded.twice() == 2
    monkeypatch.setitem(sys.modules, NAME, loaded)
    assert getsource(loaded.twice) == "def twice():\n    return 2 * NUMBER\n"


def test_tracebacks_name_the_file_of_a_module_that_was_compiled_elsewhere(source, tmp_path) -> None:
    py_compile.compile(str(source), dfile="/elsewhere/made_up.py")
    module = _loaded(_found(tmp_path))
    assert module.twice.__code__.co_filename == str(source)


def test_a_module_that_is_loaded_again_has_its_new_code(source, tmp_path) -> None:
    module = _loaded(spec := _found(tmp_path))
    source.write_text("NUMBER = 22\n")
    spec.loader.exec_module(module)
    assert module.NUMBER == 22


def test_long_bytecode_is_read_to_its_end(tmp_path) -> None:
    (file := tmp_path / "made_up.py").write_text(f"TEXT = {'x' * 200_000!r}\n")
    py_compile.compile(str(file))
    assert len(_loaded(_found(tmp_path)).TEXT) == 200_000


def _touch(source: Path) -> None:
    os.utime(source, (1, 1))


def _grow(source: Path) -> None:
    status = source.stat()
    source.write_text(SOURCE + "MORE = 1\n")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))


def _hash(source: Path) -> None:
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


def _cut(source: Path) -> None:
    (bytecode,) = source.parent.glob("__pycache__/*.pyc")
    bytecode.write_bytes(bytecode.read_bytes()[:10])


def _forget(source: Path) -> None:
    for bytecode in source.parent.glob("__pycache__/*.pyc"):
        bytecode.unlink()


@pytest.mark.parametrize("change", [_touch, _grow, _hash, _cut, _forget, os.unlink])
def test_a_module_without_current_bytecode_is_left_to_pythons_finder(source, tmp_path, change) -> None:
    assert _found(tmp_path)
    change(source)
    assert _found(tmp_path) is None


def test_other_modules_are_left_to_pythons_finder(source, tmp_path) -> None:
    assert _found(tmp_path, "another.made_up") is None
    assert _found(tmp_path / "nowhere") is None
    assert _found(source) is None
    assert QuickFinder.find_spec("node_agent") is None
    assert QuickFinder.find_spec(NAME, [str(tmp_path), str(tmp_path)]) is None


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_folder_of_the_packages_has_two_modules_of_one_name(package) -> None:
    """Python's finder would prefer a package to a file, and machine code to source."""
    for path, folders, files in os.walk(import_module(package).__path__[0]):
        sources = {name.removesuffix(".py") for name in files if name.endswith(".py")}
        compiled = {name.partition(".")[0] for name in files if name.endswith(tuple(EXTENSION_SUFFIXES))}
        assert not sources & compiled and not sources.intersection(folders), path


def test_pythons_modules_of_machine_code_are_what_its_finder_makes_of_them(tmp_path, monkeypatch) -> None:
    """They come before a user's module of the same name, such as `resource.py`."""
    expected = {name: PathFinder.find_spec(name) for name in MACHINE_CODE & PYTHONS_OWN}
    assert not {"zlib", "select"} - expected.keys() - {*sys.builtin_module_names}
    monkeypatch.syspath_prepend(tmp_path)
    for name, pythons in expected.items():
        (tmp_path / f"{name}.py").touch()
        with case(name):
            assert QuickFinder.find_spec(name) == pythons


@pytest.mark.parametrize("name", ["queue", "logging", "concurrent"])
def test_pythons_own_modules_come_from_pythons_folder(name, tmp_path, monkeypatch) -> None:
    (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    import_module(name)  # so that it has bytecode
    found = QuickFinder.find_spec(name)
    assert found and found.origin == PathFinder.find_spec(name, [os.path.dirname(os.__file__)]).origin


@pytest.mark.parametrize("name", ["time", "pytest", "nowhere"])
def test_modules_inside_python_and_of_other_folders_are_left_to_pythons_finder(name) -> None:
    assert QuickFinder.find_spec(name) is None


AGENT = """
import sys
from node_agent.kernel import late_imports, quick_imports

late_imports.begin()
import asyncio, node_agent.agent, node_agent.servers.standalone
print(*sorted({type(module.__loader__).__module__ for name, module in sys.modules.items()
               if name.startswith(("node_agent.kernel.core", "rdzv_server.", "asyncio."))}))
"""


def _loaders(*flags: str, **environment: str) -> list[str]:
    for _ in range(2):  # the first one may have to compile the modules
        done = subprocess.run(
            [sys.executable, *flags, "-c", AGENT], env={**os.environ, **environment}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
    return done.stdout.split()


def test_an_agent_finds_its_modules_itself() -> None:
    assert _loaders(PYTHONDONTWRITEBYTECODE="") == ["node_agent.kernel.quick_imports"]


def test_an_interpreter_with_bytecode_elsewhere_finds_them(tmp_path) -> None:
    assert _loaders("-O", PYTHONDONTWRITEBYTECODE="1") == ["_frozen_importlib_external"]
    assert _loaders(PYTHONPYCACHEPREFIX=str(tmp_path)) == ["_frozen_importlib_external"]


ANOTHER_PYTHON = """
import runpy, sys, types

sys.modules[{lacks!r}] = types.ModuleType({lacks!r})
sys.argv = ["node-agent", "--standalone", "--no-python", "true"]
try:
    runpy.run_module("node_agent", run_name="__main__")
finally:
    print(any(getattr(finder, "__name__", "") == "QuickFinder" for finder in sys.meta_path))
"""


@pytest.mark.parametrize("lacks", ["_imp", "importlib._bootstrap", "importlib._bootstrap_external"])
def test_an_agent_runs_in_a_python_that_lacks_a_part_of_the_finder(lacks) -> None:
    program = ANOTHER_PYTHON.format(lacks=lacks)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
