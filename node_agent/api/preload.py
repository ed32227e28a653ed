"""What the agent imports only when it comes to that, imported early: while `protocol` is ours.

Afterwards the name is the program's own (see `node_agent.own_protocol`), and what of ours imports it would fail.
"""

from node_agent import client, event_log, farewell, file_timer, hosting, post_mortem, servers, standalone
from node_agent.logs import filtered, followers, marks, plugin

MODULES = (
    client,
    event_log,
    farewell,
    file_timer,
    filtered,
    followers,
    hosting,
    marks,
    plugin,
    post_mortem,
    servers,
    standalone,
)
