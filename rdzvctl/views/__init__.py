"""Views of a status and of events for people: tables, lines, the account of a run and the next steps. Pure functions.

They choose what is shown, and in which order; `words` makes the sentences.
"""
