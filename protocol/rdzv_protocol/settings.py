"""Settings of a run. The first agent's settings become the run's; later agents must agree.

`RunSettings` is what the run has. `RequestedSettings` is what one agent asks for, with `None` for the run's own value.
Its fields are derived from those of `RunSettings`, and so are the flags of node-agent that ask for them.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, defstruct, structs

from rdzv_protocol import words
from rdzv_protocol.constraints import Count, NodeCount, Seconds, WorkerExitCode
from rdzv_protocol.text import size_range

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
SHORTEST_LEASE_S, LONGEST_LEASE_S = 0.1, 86_400
Lease = Annotated[float, Meta(ge=SHORTEST_LEASE_S, le=LONGEST_LEASE_S)]


class AskedBy(Struct, frozen=True):
    """Flag of node-agent that asks for a setting. It has the name and the limits of the setting's field."""

    metavar: str
    """Word for the flag's value in help, empty for a switch."""
    help: str
    """Line of help."""
    most: float = 10**6
    """Highest number of seconds that the flag takes, even if the setting takes more."""
    is_torchruns: bool = False
    """Whether torchrun has the flag too."""


class RunSettings(Struct, frozen=True, kw_only=True):
    """The settings of a run. Defaults are those of torchrun if it has the setting."""

    # fmt: off
    min_nodes: NodeCount = 1
    """Minimum number of nodes: with fewer, the run waits."""
    max_nodes: NodeCount = 1
    """Maximum number of nodes: further agents stand by."""
    legal_sizes: LegalSizes = ()
    """Numbers of nodes that a round may have, from `min_nodes` to `max_nodes`. If empty: each multiple of
    `node_unit`."""
    max_restarts: Annotated[Count, AskedBy(
        "N", "restart up to N times after worker failures; nodes that join or leave cost no restart (default: 0)",
        is_torchruns=True)] = 0
    """Number of charged restarts of the run; membership changes are free."""
    restart_window_s: Annotated[Window, AskedBy(
        "S", "count only restarts of the last S seconds against --max-restarts, for runs that last weeks (default: "
        "count all)", most=1e9)] | None = None
    """Seconds after which a charged restart no longer counts against `max_restarts`. If None, it always counts, as
    under torchrun."""
    restart_backoff_s: Annotated[Seconds, AskedBy(
        "S", "wait S seconds before the second charged restart in a row, and twice as long before each further one. "
        "Progress, or a round that lasts, resets the wait (default: 0, no wait)")] = 0.0
    """Seconds before the second charged restart in a row; each further one waits twice as long. If 0, none waits."""
    restart_backoff_max_s: Annotated[Seconds, AskedBy(
        "S", "limit that wait to S seconds. A round that lasts twice as long resets the wait (default: 300)")] = 300.0
    """Longest wait of `restart_backoff_s`, in seconds. A round that lasts twice as long ends the row."""
    max_restarts_without_progress: Annotated[Tries, AskedBy(
        "N", "end the run with exit code 70 after N restarts in a row without progress: a higher step or a later "
        "checkpoint, as node_agent.progress reports them. Restarts after the losses of one node count, too (default: "
        "only --max-restarts counts)")] | None = None
    """Number of charged restarts in a row without a higher step or a later checkpoint after which the run fails, and of
    restarts after losses of the same node; None for no limit."""
    fatal_exit_codes: Annotated[Codes, AskedBy(
        "N,N", "fail the run at once if a worker exits with one of these codes")] = ()
    """Worker exit codes that fail the run even if restarts are left."""
    fail_when_hopeless: Annotated[bool, AskedBy(
        "", "fail the run at once if a restart cannot help: a syntax or import error at the very start, or GPU memory "
        "that runs out at the same step again (default: print a hint)")] = False
    """Whether a failure that a restart is known not to cure ends the run."""
    join_timeout_s: Annotated[Seconds, AskedBy(
        "S", "fail the run if MIN nodes have not joined after S seconds (default: 600)")] = 600.0
    """Most seconds for which a round may stay below `min_nodes` before the run fails."""
    node_unit: Annotated[NodeCount, AskedBy(
        "N", "run only on multiples of N nodes; surplus nodes stand by (default: 1)")] = 1
    """Unit of a round's number of nodes, which is a multiple of it; surplus nodes stand by."""
    shrink_after_s: Annotated[Seconds, AskedBy(
        "S", "after losing a node, wait S seconds for a replacement before continuing with fewer nodes (default: 0, "
        "continue at once)")] = 0.0
    """Seconds to wait for a replacement of a lost participant before the run continues with fewer nodes."""
    fixed_nodes: Annotated[NodeCount, AskedBy(
        "N", "expect no other nodes than the N nodes of a scheduler's job. The run ends at once if too few of them can "
        "be fit (default: wait for other nodes until --join-timeout)")] | None = None
    """Fixed number of nodes of the run; None if other nodes may come. The run ends once too few of these nodes can be
    fit, and does not wait for `join_timeout_s`."""
    last_call_timeout_s: Annotated[Seconds, AskedBy(
        "S", "after MIN nodes have joined, wait S seconds for more (default: until no node has joined for 5 s, at most "
        "30 s)")] | None = None
    """Seconds that a round waits for more nodes after it has `min_nodes`. If None: until no node has joined for
    `LAST_CALL_QUIET_S` s, and at most `LAST_CALL_MOST_S` s."""
    lease_s: Annotated[Lease, AskedBy(
        "S", "treat a node as lost after S seconds of silence (default: 10)")] = 10.0
    """Seconds of silence after which an agent is lost. A shorter lease finds hung hosts sooner, but may also lose busy
    ones."""
    disconnect_grace_s: Annotated[Seconds, AskedBy(
        "S", "give a node S seconds to return after its connection closed (default: 1)", most=3_600)] = 1.0
    """Seconds within which an agent whose connection closed may come back."""
    scale_up: Annotated[ScaleUp, AskedBy(
        "WHEN", "choose when a new node restarts the run: immediate, cooldown, manual, or on-notice (after the workers "
        "have saved) (default: immediate)")] = "immediate"
    """When an arrival restarts a running round: at once, after a cool-down, never by itself, or when the workers have
    acknowledged a notice."""
    scale_up_window_s: Seconds = 0.1
    """Seconds after the first arrival in which further ones share its restart; no wait once the run is full."""
    scale_up_cooldown_s: Annotated[Seconds, AskedBy(
        "S", "with --scale-up cooldown, let a round last at least S seconds before a new node restarts it (default: "
        "300)", most=10**7)] = 300.0
    """Least seconds between a round's start and the restart that admits arrivals; used with `cooldown`."""
    notice_timeout_s: Seconds | None = None
    """Most seconds for which workers may save their work after a notice that the round ends. If None, they get no
    notice of leaving nodes, and `SCALE_UP_NOTICE_S` s before an arrival with `on-notice`."""
    rank_policy: Annotated[RankPolicy, AskedBy(
        "HOW", "choose how nodes get group ranks in each round. sticky: keep ranks and their order. topology: sort by "
        "--topology or the scheduler's network, so that neighbours stay together. fill-gaps: with fewer nodes, move "
        "only the last ones (default: sticky)")] = "sticky"
    """Order of the group ranks of a new round. `sticky`: the previous order. `topology`: by the nodes' places in the
    network (`sort_key`). `fill-gaps`: the previous ranks, while the last nodes move into the gaps."""
    on_hang: Annotated[OnHang, AskedBy(
        "WHAT", "choose what follows a hang: restart (charged), fail or report (default: restart)")] = "restart"
    """Consequence of a hang: a charged restart, the end of the run, or only an event."""
    max_hang_restarts: Annotated[Count, AskedBy(
        "N", "restart up to N times after hangs, without charging --max-restarts (default: charge --max-restarts)")
        ] | None = None
    """Separate budget of restarts after hangs. If None, they count against `max_restarts`."""
    straggler_factor: Annotated[Factor, AskedBy(
        "F", "treat a node as slow if its steps take F times as long as the median of the other nodes, for a while "
        "(default: 1.5)")] = 1.5
    """Ratio to the median that the time of a node's steps must reach for the node to be a straggler."""
    replace_stragglers: Annotated[bool, AskedBy(
        "", "replace a slow node (--straggler-factor) with a standby node, by a free restart, after a notice with "
        "--notice-timeout. node_agent.progress must report steps (docs/how-to/detect-hangs.md#stragglers)")] = False
    """Whether a node that stands by replaces a straggler, with a free restart."""
    # fmt: on


_SIZES = ("min_nodes", "max_nodes", "legal_sizes")
"""Settings that `--nnodes` asks for."""


class _Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that an agent asks for; `None` takes the run's own."""

    def resolve(self) -> RunSettings:
        """Return the settings of a run that this request creates."""
        return RunSettings(**self._asked())

    def conflicts(self, run: RunSettings) -> list[str]:
        """Return one phrase for each setting in which the run differs, with both values and the flag that sets it."""
        return [words.flags.other_setting(*each) for each in self.differences(run)]

    def differences(self, run: RunSettings) -> list[tuple[str, Any, Any]]:
        """Return the flag of each setting in which the run differs, with the run's value and the one asked for."""
        asked = {name: value for name, value in self._asked().items() if value != getattr(run, name)}
        sizes = {name: asked.pop(name) for name in _SIZES if name in asked}
        differences = [(flag_of(each), getattr(run, each), asked[each]) for each in asked]
        if sizes:
            here = structs.replace(run, **sizes | {"legal_sizes": self._asked().get("legal_sizes", ())})
            return [("--nnodes", _nnodes(run), _nnodes(here)), *differences]
        return differences

    def _asked(self) -> dict[str, Any]:
        return {name: value for name, value in structs.asdict(self).items() if value is not None}


if TYPE_CHECKING:  # a type checker does not know the class that `defstruct` makes, so it could not be an annotation

    class RequestedSettings(_Request, frozen=True):
        """Settings that an agent asks for: the fields of `RunSettings`; `None` takes the run's own."""

        def __init__(self, **asked: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

else:
    RequestedSettings = defstruct(
        "RequestedSettings",
        # As texts, which msgspec evaluates when it reads the first request: an agent never does.
        [(name, f"RunSettings.__annotations__[{name!r}] | None", None) for name in RunSettings.__annotations__],
        bases=(_Request,),
        module=__name__,
        namespace={"__doc__": _Request.__doc__},
        frozen=True,
        kw_only=True,
        omit_defaults=True,
    )


def _nnodes(settings: RunSettings) -> str:
    """Return the value of `--nnodes` that asks for these numbers of nodes."""
    least, most = settings.min_nodes, settings.max_nodes
    return ",".join(str(size) for size in settings.legal_sizes if least <= size <= most) or size_range(least, most)


def flag_of(name: str) -> str:
    """Return the name of the flag for a field of settings, without the unit if that is seconds."""
    return "--" + name.removesuffix("_s").replace("_", "-")
