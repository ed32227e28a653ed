"""Files that an installation writes into a user's site-packages."""

import zipfile
from pathlib import Path

import hatchling.build
import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return zipfile.ZipFile(folder / hatchling.build.build_wheel(str(folder)))


def test_the_wheels_top_level_packages_have_our_prefix(wheel: zipfile.ZipFile) -> None:
    """Another project on the index is called `protocol`. Either one may be installed first, without affecting the
    other.
    """
    tops = {name.partition("/")[0] for name in wheel.namelist() if not name.partition("/")[0].endswith(".dist-info")}
    assert tops == {"rdzv_protocol", "rdzv_server", "node_agent", "rdzvctl"}


def test_every_module_is_in_it(wheel: zipfile.ZipFile) -> None:
    folders = {"rdzv_protocol": ROOT / "protocol", "rdzv_server": ROOT, "node_agent": ROOT, "rdzvctl": ROOT}
    modules = [
        path.relative_to(parent).as_posix() for top, parent in folders.items() for path in (parent / top).rglob("*.py")
    ]
    assert modules and sorted(set(modules) - set(wheel.namelist())) == []
