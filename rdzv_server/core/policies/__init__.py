"""Policies of every run, each in a file or folder of its own.

To add a policy, write it here and add it to `POLICIES`. Hooks are called, and facts are due, in the order of that
tuple. `RestartTimes` comes after `TimeLedger`, because it reads when the ledger saw the first progress. No other policy
depends on the order.
"""

from rdzv_server.core.kernel.policy import Policies
from rdzv_server.core.policies.consoles import Consoles
from rdzv_server.core.policies.ended_scripts import EndedScripts
from rdzv_server.core.policies.hangs.hang_policy import Hangs
from rdzv_server.core.policies.network_check.network_policy import NetworkCheck
from rdzv_server.core.policies.restart_cost import RestartTimes
from rdzv_server.core.policies.stragglers import Stragglers
from rdzv_server.core.policies.time_ledger import TimeLedger
from rdzv_server.core.policies.timeline import Timeline

POLICIES: Policies = (NetworkCheck, Hangs, Consoles, EndedScripts, Stragglers, Timeline, TimeLedger, RestartTimes)
