"""The sans-IO part of the agent: its state machine and pure helpers.

The agent has one exchange with the server at a time: a join, then one poll after another. Each is sent when the
previous one is answered. Reports and the leave use a second connection. The agent joins only when it is new or the
server has told it to, and when all its workers have ended. So a round never starts while an old worker lives.
"""
