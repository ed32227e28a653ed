"""Example values for fields whose name and type do not show what a message can say, by part of the product.

A module may have `EXAMPLES`, fields of examples for a function, and `BY_TYPE`, values for a type of fields.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Examples = Mapping[Callable[..., str], Sequence[Mapping[str, Any]]]
ByType = Mapping[Any, tuple[Any, ...]]
