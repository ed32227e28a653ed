"""Messages of an agent about the preemption of its machine."""

from collections.abc import Iterable

NO_ANSWER_IN_TIME = "no answer in time"


def not_a_file(source: str, path: str) -> str:
    """For an unusable `--preemption-file`. `source`: the flag or variable."""
    return f"{source}: the folder of {path!r} does not exist"


def folder_closed(source: str, path: str) -> str:
    return f"{source}: this user has no access to the folder of {path!r}: name another file"


def not_a_cloud(clouds: Iterable[str], given: str) -> str:
    """For a wrong value of `--preemption-poll`."""
    return f"expected {', '.join(clouds)}, or one of them as CLOUD=http://HOST:PORT, not {given!r:.80}"


def preempted(how: str) -> str:
    """The agent's reason to leave."""
    return f"preempted: {how}"


def file_is_there(path: str) -> str:
    return f"{path} exists"


def file_silent(path: str, for_s: float) -> str:
    return (
        f"no answer from {path} for {for_s:g} s: check its disk; until it answers, the agent sees no preemption there"
    )


def slinky_drains(path: str) -> str:
    return f"Slinky drains this pod ({path})"


def aws_takes_back(action: str, at: str) -> str:
    return f"AWS will {action} this spot instance at {at}"


GOOGLE_TAKES_BACK = "Google will take this instance back in 30 s"


def azure_takes_back(event: str, machine: str, not_before: str) -> str:
    return f"Azure has scheduled {event} of {machine}, not before {not_before}"


def no_answer(cloud: str, address: str, why: str) -> str:
    return f"no answer from {cloud}'s metadata service at {address} ({why}); the agent will ask again"


def not_the_clouds(cloud: str, why: str) -> str:
    """A reason for `no_answer`: another program may listen there."""
    return f"the answer is not from {cloud}: {why}"


NOT_GOOGLES = "it lacks Google's header"


def wrong_status(status: int) -> str:
    return f"HTTP status {status}"
