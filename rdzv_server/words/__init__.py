"""Sentences of the server: each function makes one message to a person from its fields.

A module has the messages of one part of the server. A function's name is the kind of the message, its arguments are the
fields. `tests/golden/messages.txt` shows every message, and `python -m tests.golden --write` makes that file.
"""
