"""Messages about the agent's metrics."""


def place(url: str) -> str:
    return f"metrics: {url}"


def no_port(host: str, port: int, why: str) -> str:
    return f"--metrics-port: cannot listen on {host}, port {port}: {why}; name another port, or 0 for a free one"


def not_reported(error: str) -> str:
    return f"could not report metrics: {error}"
