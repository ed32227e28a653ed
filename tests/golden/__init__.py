"""Every message that a person can see, in one reviewed file, `messages.txt`, and every page of `--help` in `help.txt`.

A function in a `words` module makes each sentence. Its name is the kind of the message, and its arguments are the
fields. This package calls every such function with example values and writes the results. Other tests call the same
functions (`assert words.nodes.cordoned("a") == ...`) or search an output for them (`tests.support.message_search`), and
do not quote sentences. So a sentence is changed only in its `words` module, and reviewed as a change of `messages.txt`:

    python -m tests.golden --write     write the files
    python -m tests.golden --quotes    list the sentences that other tests quote
"""
