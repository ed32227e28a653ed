"""The sans-IO core of the server: events in, effects out. The caller passes in the time as `now`.

- `kernel/` holds the rules of one run: what a rendezvous is. `kernel.run.Run` is the state of one run, and only
  `kernel.machine.RunMachine` changes it.
- `policies/` holds the rules of a run beside the rendezvous, such as hang detection: a file or folder for each policy.
  The kernel does not name policies.
- `nodes/` decides what applies to a node in all runs: cordons, blame and exclusion.
- `runs/` holds the runs of a server. All events enter through `runs.registry.Registry`.
- `views/` makes what people see of a run.

How it works. A run is `forming` a round, is `running` it, or has ended. Agents that have joined wait for a seat.
`completion` decides when the round completes, `admission` picks the agents that get a seat, and `rank_assignment` picks
their ranks.

The next round opens when a worker fails, when a participant is lost or leaves, or when a node arrives. Then the server
tells every participant to stop and join again. `restart_budget` decides what the restart costs, and `liveness` which
agents are still alive.

Facts that change a run are durable. The server records each one before it acts on it, and replaying a run's records
gives the same state. The server does not record that it heard an agent, that a connection closed or that time passed.
It records what it concludes from them.
"""
