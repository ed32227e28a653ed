"""Messages about servers that answer, and about the nodes that they keep out."""

NONE_LEADS = "no server leads"
