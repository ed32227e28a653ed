"""Version of the replaced torch. A variable can name an older one."""

import os

__version__ = os.environ.get("STAND_IN_VERSION", "2.13.0+cpu")
