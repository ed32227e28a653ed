"""Settings of a run. The first agent's settings become the run's; later agents must agree.

`RunSettings` is what the run has. `RequestedSettings` is what one agent asks for, with `None` for the run's own value.
Its fields are derived from those of `RunSettings`.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, defstruct, structs

from rdzv_protocol import words
from rdzv_protocol.constraints import Count, NodeCount, Seconds, WorkerExitCode

ScaleUp = Literal["immediate", "cooldown", "manual", "on-notice"]
OnHang = Literal["restart", "fail", "report"]
RankPolicy = Literal["sticky", "topology", "fill-gaps"]
Codes = Annotated[tuple[WorkerExitCode, ...], Meta(max_length=32)]
LAST_CALL_QUIET_S, LAST_CALL_MOST_S = 5.0, 30.0
"""Last call in seconds of a run that sets none: see `last_call_timeout_s`. It may be short: a node that comes later
costs a free restart."""
LegalSizes = Annotated[tuple[NodeCount, ...], Meta(max_length=32)]
SCALE_UP_NOTICE_S = 60.0
"""Seconds that workers have to save before an arrival is admitted, if `notice_timeout_s` is not set."""
Window = Annotated[float, Meta(ge=1, le=1e9)]
Tries = Annotated[int, Meta(ge=1, le=10_000_000)]
Factor = Annotated[float, Meta(ge=1.1, le=100)]
Lease = Annotated[float, Meta(ge=0.1, le=86_400)]


class RunSettings(Struct, frozen=True, kw_only=True):
    """The settings of a run. Defaults are those of torchrun if it has the setting."""

    min_nodes: NodeCount = 1
    """Minimum number of nodes: with fewer, the run waits."""
    max_nodes: NodeCount = 1
    """Maximum number of nodes: further agents stand by."""
    node_unit: NodeCount = 1
    """Unit of a round's number of nodes, which is a multiple of it; surplus nodes stand by."""
    legal_sizes: LegalSizes = ()
    """Numbers of nodes that a round may have, from `min_nodes` to `max_nodes`. If empty: each multiple of
    `node_unit`."""
    max_restarts: Count = 0
    """Number of charged restarts of the run; membership changes are free."""
    restart_window_s: Window | None = None
    """Seconds after which a charged restart no longer counts against `max_restarts`. If None, it always counts, as
    under torchrun."""
    restart_backoff_s: Seconds = 0.0
    """Seconds before the second charged restart in a row; each further one waits twice as long. If 0, none waits."""
    restart_backoff_max_s: Seconds = 300.0
    """Longest wait of `restart_backoff_s`, in seconds. A round that lasts twice as long ends the row."""
    max_restarts_without_progress: Tries | None = None
    """Number of charged restarts in a row without a higher step or a later checkpoint after which the run fails; None
    for no limit."""
    join_timeout_s: Seconds = 600.0
    """Most seconds for which a round may stay below `min_nodes` before the run fails."""
    last_call_timeout_s: Seconds | None = None
    """Seconds that a round waits for more nodes after it has `min_nodes`. If None: until no node has joined for
    `LAST_CALL_QUIET_S` s, and at most `LAST_CALL_MOST_S` s."""
    shrink_after_s: Seconds = 0.0
    """Seconds to wait for a replacement of a lost participant before the run continues with fewer nodes."""
    fixed_nodes: NodeCount | None = None
    """Fixed number of nodes of the run: it ends once too few of them can be fit, instead of waiting for
    `join_timeout_s`. None if other nodes may come."""
    lease_s: Lease = 10.0
    """Seconds of silence after which an agent is lost. A shorter lease finds hung hosts sooner, but may also lose busy
    ones."""
    disconnect_grace_s: Seconds = 1.0
    """Seconds within which an agent whose connection closed may come back."""
    scale_up: ScaleUp = "immediate"
    """When an arrival restarts a running round: at once, after a cool-down, never by itself, or when the workers have
    acknowledged a notice."""
    scale_up_window_s: Seconds = 0.1
    """Seconds after the first arrival in which further ones share its restart; no wait once the run is full."""
    scale_up_cooldown_s: Seconds = 300.0
    """Least seconds between a round's start and the restart that admits arrivals; used with `cooldown`."""
    fatal_exit_codes: Codes = ()
    """Worker exit codes that fail the run even if restarts are left."""
    fail_when_hopeless: bool = False
    """Whether a failure that a restart is known not to cure ends the run."""
    notice_timeout_s: Seconds | None = None
    """Most seconds for which workers may save their work after a notice that the round ends. If None, they get no
    notice of leaving nodes, and `SCALE_UP_NOTICE_S` s before an arrival with `on-notice`."""
    rank_policy: RankPolicy = "sticky"
    """Order of the group ranks of a new round: the previous ranks in their order, by the nodes' places in the network
    (`sort_key`), or the previous ranks while the last nodes move into the gaps."""
    on_hang: OnHang = "restart"
    """Consequence of a hang: a charged restart, the end of the run, or only an event."""
    max_hang_restarts: Count | None = None
    """Separate budget of restarts after hangs. If None, they count against `max_restarts`."""
    straggler_factor: Factor = 1.5
    """Ratio to the median that the time of a node's steps must reach for the node to be a straggler."""
    replace_stragglers: bool = False
    """Whether a node that stands by replaces a straggler, with a free restart."""


class _Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that an agent asks for; `None` takes the run's own."""

    def resolve(self) -> RunSettings:
        """Return the settings of a run that this request creates."""
        return RunSettings(**self._asked())

    def conflicts(self, run: RunSettings) -> list[str]:
        """Return one phrase for each setting in which the run differs, with both values and the flag that sets it."""
        asked = {name: value for name, value in self._asked().items() if value != getattr(run, name)}
        if asked.keys() & {"min_nodes", "max_nodes"}:
            least, most = (asked.pop(name, getattr(run, name)) for name in ("min_nodes", "max_nodes"))
            nodes = words.flags.other_setting("--nnodes", f"{run.min_nodes}:{run.max_nodes}", f"{least}:{most}")
            return [nodes, *_differences(asked, run)]
        return _differences(asked, run)

    def _asked(self) -> dict[str, Any]:
        return {name: value for name, value in structs.asdict(self).items() if value is not None}


if TYPE_CHECKING:

    class RequestedSettings(_Request, frozen=True):
        """Settings that an agent asks for: the fields of `RunSettings`; `None` takes the run's own."""

        def __init__(self, **asked: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

else:
    RequestedSettings = defstruct(
        "RequestedSettings",
        [(name, kind | None, None) for name, kind in RunSettings.__annotations__.items()],
        bases=(_Request,),
        module=__name__,
        namespace={"__doc__": _Request.__doc__},
        frozen=True,
        kw_only=True,
        omit_defaults=True,
    )


def _differences(asked: dict[str, Any], run: RunSettings) -> list[str]:
    return [words.flags.other_setting(flag_of(name), getattr(run, name), value) for name, value in asked.items()]


def flag_of(name: str) -> str:
    """Return the name of the flag for a field of settings, without the unit if that is seconds."""
    return "--" + name.removesuffix("_s").replace("_", "-")
