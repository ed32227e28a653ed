"""Messages about the place where the server keeps its runs: a file, or the memory."""

from typing import Literal

WITHOUT_MEMORY = "to start without any runs, which restarts all workers"
IN_MEMORY = "memory: the server forgets its runs when it stops"

# Outages.

TRYING_AGAIN = "retrying"


def outage(reason: object, consequence: str) -> str:
    return f"{reason}; {consequence}"


# Values of `--store`.


def unknown_store(name: str) -> str:
    return f"--store {name}: give sqlite:PATH, memory or etcd://HOST,HOST,HOST/CLUSTER"


NO_HOME = "this user has no home folder for the state: set HOME or XDG_STATE_HOME, or name a place with --store"


def no_folder(folder: str, why: object) -> str:
    return f"cannot make the folder {folder} for the state ({why}): name another place with --store"


def no_sqlite(why: str) -> str:
    return (
        f"this Python has no SQLite for the state ({why}): start rdzv-server with another Python, or build this one "
        "again with SQLite's headers (libsqlite3-dev). With --store memory or etcd://, the server needs no SQLite"
    )


# A state that cannot be read. `place`: the file, or the part of etcd.

COPY_OR_MOVE_AWAY = "a copy of it, or move it away"
MOVE_FILE_AWAY = f"move the file away {WITHOUT_MEMORY}"


def of_another_format(
    place: str, age: Literal["an older", "a later", "another"], found: str, own: int, or_do: str
) -> str:
    """`or_do`: what to do instead."""
    return (
        f"{age} version of rdzv-server wrote {place} ({found}, this one: format {own}). Nothing was changed: "
        f"start that version, or {or_do}"
    )


def damaged(place: str, why: str, restore: str) -> str:
    """`restore`: what to restore, or what to do instead."""
    return f"{place} is damaged ({why}). Restore {restore} {WITHOUT_MEMORY}"


def later_or_damaged(place: str, why: str, restore: str) -> str:
    return (
        f"{place} was written by a later version of rdzv-server, or is damaged ({why}). Start that version, or restore "
        f"{restore} {WITHOUT_MEMORY}"
    )


def no_creation(run_id: str, attempt: int) -> str:
    return (
        f"the stored state is damaged: attempt {attempt} of run {run_id!r} has records, but not the first one, which "
        f"creates it. Restore a copy of the state, or remove it {WITHOUT_MEMORY}"
    )


def internal_error(place: str, why: str) -> str:
    return (
        f"internal error of rdzv-server: {place} rejected a change ({why}). "
        "The file is not damaged: keep it, start rdzv-server again, and report this line"
    )


def unknown_kind(kind: str, attempt: int, run_id: str) -> str:
    return f"unknown kind {kind!r} in attempt {attempt} of run {run_id!r}"


def malformed_record(kind: str, attempt: int, run_id: str, why: object) -> str:
    return f"{kind} in attempt {attempt} of run {run_id!r}: {why}"


def malformed_events(why: object) -> str:
    return f"events: {why}"


# The state file.


def in_use(path: str) -> str:
    return f"{path} is in use by another rdzv-server: stop that one, or give this one another file with --store"


def cannot_open(path: str, why: object) -> str:
    return f"cannot open {path} ({why}): check that its folder exists and that this user may write to it"


NOT_WRITABLE = "not writable"


def mounted_alone(path: str) -> str:
    return (
        f"{path} is mounted into this container as a single file. The container's end would lose {path}-wal, and with "
        "it the latest changes: mount the file's folder"
    )


def not_closed(path: str, after_s: float) -> str:
    return f"{path} could not be closed within {after_s:g} s: its disk hangs; confirmed records are not lost"


def cannot_start(path: str, why: str) -> str:
    return f"cannot use {path}: {why}"


def is_a_folder(path: str) -> str:
    return f"{path} is a folder: name a file in it with --store"


def cannot_write(path: str, why: object) -> str:
    return f"cannot write to {path}: {why}"


def disk_fails(path: str) -> str:
    return f"cannot read {path}: its disk failed to read a part of it"


INCOMPLETE_COPY = "the copy is not complete"


def cannot_lock(path: str, why: object) -> str:
    return (
        f"cannot lock {path} ({why}): check that its file system supports locks, or name a file on a local disk with "
        "--store"
    )


def another_programs(path: str) -> str:
    return f"{path} is another program's database: name another file with --store"


def empty_with_wal(path: str) -> str:
    return f"it is empty, and {path}-wal cannot be read"


# Changes that another program made to the state file, in words that follow the file's name.

WAS_REMOVED = "was removed"
WAS_REPLACED = "was replaced by another file"


def cannot_be_examined(why: object) -> str:
    return f"cannot be examined ({why})"


def was_shortened(before: int, now: int) -> str:
    """Sizes in bytes."""
    return f"was shortened from {before} to {now} bytes"


def rewritten(path: str, what: str, state: str) -> str:
    """`what`: what happened to the file at `path`, which is the state file or belongs to it."""
    return f"{path} {what} while rdzv-server was running; rdzv-server wrote {state} again, with all runs"


def only_in_memory(path: str, what: str, state: str) -> str:
    return (
        f"{path} {what} while rdzv-server was running; it still has all runs in memory. "
        f"Restore a copy of {state} and start rdzv-server again, or move {state} away {WITHOUT_MEMORY}"
    )


# Changes that the state file lost while no server ran, in words that follow its name.


def noted_but_empty(number: int, note: str) -> str:
    """`number` of the last record, in the file `note`."""
    return f"is missing or empty, but its last record was {number} ({note})"


def empty_beside_wal(state: str) -> str:
    return f"is missing or empty, but {state}-wal has its latest changes"


def lost_latest_changes(number: int, noted: int, note: str, state: str) -> str:
    return (
        f"lost its latest changes: its last record is {number} and was {noted} ({note}). "
        f"{state}-wal was probably removed or damaged, or an older copy was restored"
    )


def lost_changes(state: str, what: str, note: str) -> str:
    return (
        f"{state} {what}. Restore a copy of {state}, without a -wal file, and delete {note}; "
        f"or move {state}, its -wal and {note} away {WITHOUT_MEMORY}"
    )
