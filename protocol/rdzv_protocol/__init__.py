"""The wire contract between `rdzv-server`, `node-agent` and `rdzvctl`, and code that these programs share.

`messages` defines the types of all messages, `settings` the settings of a run, and `constraints` the types of their
fields. `codec` encodes and decodes messages, `paths` has the paths that they are sent to, and `errors` the refusals.
`protocol/README.md` explains all of it to people. Beside the contract: exit codes, values of flags, credentials, log
lines, metrics and traces.
"""

VERSION = "1.0.0rc1"
