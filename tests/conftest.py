"""Hypothesis profiles: `ci` is the same on every machine and every day, `thorough` looks further."""

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile("ci", derandomize=True, max_examples=250, stateful_step_count=40, deadline=None)
settings.register_profile(
    "thorough",
    max_examples=2_000,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Under nohup, or in a shell's background, the tests are started ignoring these; what they start must not.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
