"""Views of a status and of events for people: tables, lines, the explanation of a run and the next steps.

These pure functions choose what is shown, and in which order; `words` makes the sentences.
"""
