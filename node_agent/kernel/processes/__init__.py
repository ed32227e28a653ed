"""Processes of an agent, whatever they run: start, signals, orphans, temporary folders and reserved ports."""
