"""Stores by the name that `--store` gives them."""

import os

from rdzv_server.storage.base import MemoryStore, Store, StoreBroken

FORMS = "sqlite:PATH, memory or etcd://HOST,HOST,HOST/CLUSTER"


def make_store(name: str | None, port: int) -> tuple[Store, str]:
    """Make the store that `name` asks for; return it, and in words where it is. Raises `StoreBroken`.

    None: a file for this port, in the folder where this user's services keep their state. A server on a port that the
    kernel chooses is not found again by its agents after a restart, so that it keeps its state in memory.
    """
    if name is None:
        name = "memory" if port == 0 else f"sqlite:{_default_path(port)}"
    kind, _, place = name.partition(":")
    if kind == "memory" and not place:
        return MemoryStore(), "memory: runs are forgotten when it stops"
    if kind == "sqlite" and place:
        from rdzv_server.storage.sqlite import SqliteStore

        return SqliteStore(place), place
    raise StoreBroken(f"--store {name}: give {FORMS}")


def _default_path(port: int) -> str:
    """Path of the default store: in the folder that systemd gives a service, else in XDG's folder for state.

    Raises `StoreBroken`.
    """
    folder = os.environ.get("STATE_DIRECTORY") or os.path.join(
        os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "rdzv-server"
    )
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreBroken(
            f"cannot make {folder} to keep the state in ({error.strerror}): name another place with --store"
        ) from None
    return os.path.join(folder, f"port-{port}.db")
