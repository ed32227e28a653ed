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
    """Type of the message in the request's body; None: the request has no body."""
    answer: Any = str
    """Type of an answer 200: of a message, str for plain text, dict for any map."""
    media: str = ""
    """Media type of an answer 200; empty: it follows from the type."""
    says: str = ""
    """Meaning of an answer 200, in words; empty: the summary."""
    streams: str = ""
    """Content of server-sent events, for clients that accept them, in words; empty: there are none."""
    no: str = ""
    """Meaning of an answer 503 in plain text, where 200 is a yes; empty: there is none."""
    query: tuple[tuple[str, Any, str], ...] = ()
    """Parameters behind the `?`, with their types and what they do."""
    refusals: tuple[type[ProtocolError], ...] = ()
    """Refusals beyond those of any request."""
