"""The sans-IO core of the server: events in, effects out, `now` passed in.

- `kernel/` holds the rules of one run: what a rendezvous is. `kernel.run.Run` is the state of one run, and
  `kernel.machine.RunMachine` is its only mutator.
- `policies/` holds what runs have beside the rendezvous, each policy in a file or folder of its own. The kernel names
  none.
- `nodes/` decides what is about a node in all runs: cordons, blame and exclusion.
- `runs/` holds the runs of a server: `runs.registry.Registry` is the way in for all events.
- `views/` says what people are shown of a run.

Theory of operation. A run is `forming` a round, `running` it, or has ended. Agents that have joined wait for a seat;
when `completion` says so the round completes, `admission` picks who gets a seat and `rank_assignment` says which. A
worker's failure, a lost or leaving participant or an arrival opens the next round: every participant is told to stop
and joins again. `restart_budget` says what that costs, `liveness` who is still there.

Facts that change a run are durable: each is recorded before it is acted on, and replaying a run's records gives the
same state. Being heard, a closed connection and the passing of time are not recorded; what follows from them is.
"""
