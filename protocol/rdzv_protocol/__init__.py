"""The wire contract between `rdzv-server`, `node-agent` and `rdzvctl`, and what these programs do alike.

`messages` are the types of what is sent, `settings` of what a run may be told, `constraints` of their fields; `codec`
makes bytes of them and back, `paths` says where they are sent and `errors` how they are refused. `protocol/README.md`
tells all of it to people. Beside the contract: exit codes, flags' values, credentials, log lines, metrics and traces.
"""

VERSION = "0.1.0"
