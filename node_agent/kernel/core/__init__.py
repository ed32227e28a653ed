"""The sans-IO side of the agent: its state machine and its pure helpers.

Theory of operation. The agent has one exchange with the server at a time: a join, then one poll after another, each
sent when the one before it was answered. Reports and the leave go beside it. It joins only when it has no workers and
the server has told it to (or it is new), so that a round never starts while an old worker of it lives.
"""
