"""The smallest script to launch: each worker says its place in the world and the arguments that it was given."""

import os
import sys

RANK, WORLD_SIZE = os.environ["RANK"], os.environ["WORLD_SIZE"]

print(f"rank {RANK} of {WORLD_SIZE}, on node {os.environ['GROUP_RANK']}; arguments: {sys.argv[1:]}")
