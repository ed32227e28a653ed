"""The sans-IO run state machine: events in, effects out, `now` passed in.

Theory of operation. A run is `forming` a round, `running` it, or has ended. Agents that have joined wait for a seat;
when `completion` says so the round completes, `admission` picks who gets a seat and `rank_assignment` says which. A
worker's failure, a lost or leaving participant or an arrival opens the next round: every participant is told to stop
and joins again. `restart_budget` says what that costs, `liveness` who is still there. `run.Run` holds the state of one
run, `machine.RunMachine` is its only mutator, and `registry.Registry` holds the runs of a server. What is about a node
in all runs is decided by a machine beside them, `nodes.machine.Nodes`.

Facts that change a run are durable: each is recorded before it is acted on, and replaying a run's records gives the
same state. Being heard, a closed connection and the passing of time are not recorded; what follows from them is.
"""
