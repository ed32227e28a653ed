"""Messages of the server about its exports: the event log, the webhook, and other work beside the runs."""


def bad_event_log(path: str, why: str) -> str:
    return f"--event-log {path}: {why}"


def unreadable_secret(path: str, why: str) -> str:
    return f"--webhook-secret-file {path}: {why}"


def empty_secret(path: str) -> str:
    return f"--webhook-secret-file {path}: it is empty; put a secret into it (openssl rand -hex 32)"


def secret_not_renewed(why: str) -> str:
    """After SIGHUP."""
    return f"SIGHUP: {why}; keeping the current secret"


BAD_URL = "--webhook: give a URL such as https://HOST/PATH"


def export_failed(name: str, pause_s: float) -> str:
    """After an error in the server itself."""
    return f"{name} failed and starts again in {pause_s:g} s; runs continue"


def webhook_fails(webhook: str, why: str) -> str:
    return f"{webhook}: {why}"


def webhook_refuses(status: int, reason: str) -> str:
    return f"it answered {status} {reason}".rstrip()


WEBHOOK_CONSEQUENCE = "runs continue, and the server sends events again until the receiver accepts them"


def webhook_answers(webhook: str) -> str:
    return f"{webhook} answers again; no event was lost"
