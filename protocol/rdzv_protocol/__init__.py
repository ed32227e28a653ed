"""The wire contract between `rdzv-server` and `node-agent`, and nothing else.

`messages` says what is sent, `settings` what a run may be told, `schema` what a value may look like,
`codec` how it travels (msgpack), `paths` where it is sent, `errors` how it is refused.
"""

VERSION = "0.1.0"
