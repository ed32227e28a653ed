"""A distribution with a `torchrun.logs_specs` entry point, for tests. It only needs a folder on PYTHONPATH."""

from pathlib import Path

SPECS = '''
import os
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std


class OneFolder(LogsSpecs):
    """Everything into one folder, by rank. Tells the workers where, and shows rank 0 alone."""

    def reify(self, envs):
        print("the plug-in prints")
        folder = os.path.join(self._root_log_dir, "by-rank")
        os.makedirs(folder, exist_ok=True)
        paths = {local: os.path.join(folder, f"{env['RANK']}.log") for local, env in envs.items()}
        for local, env in envs.items():
            env["MY_LOG"] = paths[local]
            env["TORCHELASTIC_ERROR_FILE"] = paths[local] + ".error"
        teed = {local: path for local, path in paths.items() if envs[local]["RANK"] == "0"}
        return LogsDest(paths, dict.fromkeys(paths, ""), teed, {}, {}, os.path.join(folder, "filtered.log"), "")

    @property
    def root_log_dir(self):
        return self._root_log_dir


class Arguments(OneFolder):
    """Says what it was made with."""

    def reify(self, envs):
        raise RuntimeError(f"{self._redirects!r} {self._tee!r} {self._local_ranks_filter!r}")


class Broken(OneFolder):
    def __init__(self, *args, **kwargs):
        raise NotADirectoryError("no such folder")


class Forgetful(OneFolder):
    def reify(self, envs):
        return LogsDest({0: ""}, {0: ""})


class Dying(OneFolder):
    def reify(self, envs):
        os._exit(3)
'''

ENTRY_POINTS = """\
[torchrun.logs_specs]
one-folder = one_folder_specs:OneFolder
arguments = one_folder_specs:Arguments
broken = one_folder_specs:Broken
forgetful = one_folder_specs:Forgetful
dying = one_folder_specs:Dying
missing = no_such_module:Nothing
"""


def install(folder: Path) -> Path:
    """Install it into the folder."""
    info = folder / "one_folder_specs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one-folder-specs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "one_folder_specs.py").write_text(SPECS)
    return folder
