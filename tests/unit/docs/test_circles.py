"""No package has an import circle of modules or of folders. Imports for the type checker count."""

from collections import defaultdict

import grimp
import pytest


@pytest.mark.parametrize("package", ["rdzv_protocol", "rdzv_server", "node_agent", "rdzvctl"])
def test_no_module_imports_itself_on_any_way(package):
    graph = grimp.build_graph(package, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}
    assert len(imports) > 5 and any(imports.values())
    assert circles(imports) == circles(between_neighbours(imports)) == []


def test_an_import_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]


def test_an_import_circle_of_folders_is_found():
    imports = {"p.a.x": {"p.b.x"}, "p.b.x": {"p.b.y"}, "p.b.y": {"p.a.y"}, "p.a.y": {"p.a"}, "p.a": {"p.a.x"}}
    assert circles(between_neighbours(imports)) == [["p.a", "p.b"]]


def between_neighbours(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return each import as one between two modules or folders of the same folder."""
    found = defaultdict[str, set[str]](set)
    for module, targets in imports.items():
        for target in targets:
            ours, theirs = module.split("."), target.split(".")
            common = next((at for at, each in enumerate(zip(ours, theirs, strict=False)) if len({*each}) == 2), None)
            if common is not None:
                found[".".join(ours[: common + 1])].add(".".join(theirs[: common + 1]))
    return found


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return groups of modules that import each other, directly or through others."""
    reached = {module: _reached(module, imports) for module in imports}
    of_each = {
        tuple(sorted(other for other in reached[module] if module in reached.get(other, ()))) for module in imports
    }
    return [list(each) for each in sorted(of_each) if len(each) > 1]


def _reached(module: str, imports: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    ahead = [module]
    while ahead:
        new = imports.get(ahead.pop(), set()) - reached
        reached |= new
        ahead += new
    return reached
