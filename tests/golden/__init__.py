"""Every message that a person can be shown, in one reviewed file: `messages.txt`; every page of `--help`: `help.txt`.

A sentence is made in a `words` module by a function: its name is the kind of the message, its arguments are the fields.
This package calls every such function with example values and writes what it returns. Other tests call the same
functions (`assert words.nodes.cordoned("a") == ...`) or search an output for them (`tests.support.told`), and quote no
sentence. So a sentence is improved in its `words` module, and reviewed as a change of `messages.txt`:

    python -m tests.golden --write     write the files
    python -m tests.golden --quotes    list the sentences that other tests quote
"""
