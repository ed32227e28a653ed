"""The work of every agent: join, poll, start workers, supervise them and report. It knows no feature by name."""
