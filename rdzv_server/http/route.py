"""One row of the table of routes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from rdzv_protocol.errors import ProtocolError

Handler = Callable[..., Awaitable[web.StreamResponse]]
"""Method of `routes.HttpApi` that answers a request of aiohttp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Route: one method of one path, its handler, and its description in the OpenAPI document."""

    method: str
    path: str
    handler: Handler
    summary: str
    request: Any = None
    """Type of the message in the request's body; None if the request has no body."""
    answer: Any = str
    """Type of an answer 200: a message type, str for plain text, dict for any map."""
    media: str = ""
    """Media type of an answer 200; empty if it follows from the type."""
    says: str = ""
    """Meaning of an answer 200, as text; empty if the summary says it."""
    streams: str = ""
    """Content of server-sent events, as text, for clients that accept them; empty if there are none."""
    no: str = ""
    """Meaning of an answer 503 in plain text, for a route whose 200 means yes; empty for other routes."""
    query: tuple[tuple[str, Any, str], ...] = ()
    """Parameters after the `?`, with their types and what they do."""
    required: tuple[str, ...] = ()
    """Names of those parameters that a request must have."""
    refusals: tuple[type[ProtocolError], ...] = ()
    """Refusals beyond those of any request."""
