"""Evidence of a hang on this node: what its workers were doing, collected before any of them is killed."""

import signal

STACKS_FILE = "NODE_AGENT_STACKS_FILE"
"""Variable with the file to which a worker writes its stacks on request. The script does not see this variable."""
STACKS_SIGNAL = signal.SIGRTMIN + 11
"""Signal that makes a worker write its stacks: a real-time one, which torch, NCCL, debuggers and schedulers do not use.
"""
