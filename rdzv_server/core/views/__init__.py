"""Views of a run: one model, and the status and watched documents that are made from it."""
