"""Release of torch that is stood in for: the environment may name an older one."""

import os

__version__ = os.environ.get("STAND_IN_VERSION", "2.13.0+cpu")
