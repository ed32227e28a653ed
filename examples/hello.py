"""The smallest script to launch: each worker prints its ranks and its arguments."""

import os
import sys

RANK, WORLD_SIZE = os.environ["RANK"], os.environ["WORLD_SIZE"]

print(f"rank {RANK} of {WORLD_SIZE}, on node {os.environ['GROUP_RANK']}; arguments: {sys.argv[1:]}")
