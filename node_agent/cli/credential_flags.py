"""The token and the TLS that a command line asks for."""

from node_agent.cli.arguments import Asked
from node_agent.config import Target, UsageError
from node_agent.transport.credentials import Credentials, TlsFiles


def credentials(asked: Asked, target: Target) -> Credentials:
    """What they come to, once every file has been read. Raises `UsageError`."""
    try:
        found = Credentials(asked["token_file"], _tls(asked, target))
    except ValueError as error:
        raise UsageError(f"{asked.source('token_file')} {error}") from None
    try:
        found.context()
    except ValueError as error:
        raise UsageError(str(error)) from None
    return found


def _tls(asked: Asked, target: Target) -> TlsFiles | None:
    cert, key = asked["tls_cert"], asked["tls_key"]
    given = [asked.source(name) for name in ("tls_ca", "tls_cert", "tls_key") if asked[name] is not None]
    if not given:
        return None
    if target.endpoint is None or target.is_on_a_node:
        raise UsageError(
            f"{given[0]}: a server that a node hosts speaks no TLS; start rdzv-server with --tls-cert, and name it "
            "with --endpoint (and --rdzv-backend rdzv-server)"
        )
    if (cert is None) != (key is None):
        raise UsageError(f"{asked.source('tls_cert')} and {asked.source('tls_key')} belong together")
    if asked["tls_ca"] is None:
        raise UsageError(f"{given[0]} needs --tls-ca, too: a file of authorities, or system")
    return TlsFiles(asked["tls_ca"], cert, key)
