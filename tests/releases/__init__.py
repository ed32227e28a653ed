"""Promises of each released version, and today's programs beside them.

A folder for each version has what that version did, recorded by `make recording`:

| file | what |
|---|---|
| `promises.json` | its flags, variables, exit codes, Python API, HTTP API, messages, events and metrics |
| `wire.json` | every message between its server and its agents, in a run with a restart |
| `state.db` | the state file that its server left, killed in the middle of a run |
| `config.toml` | the configuration file that its rdzvctl wrote, with contexts |

The tests check that today's programs keep every promise, and understand every message and file.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
VERSIONS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and not path.name.startswith("_"))
FILES = ("promises.json", "wire.json", "state.db", "config.toml")
