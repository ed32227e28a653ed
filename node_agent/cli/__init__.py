"""The command line of `node-agent`: torchrun's flags and our own, with their PET_* variables.

    arguments       `Arguments`: each argument once, with its flag, reader and default
    parser          from the words of a command line, which may be shortened, and variables to `Arguments`
    rendezvous      the rendezvous target, from several arguments together
    schedulers      a scheduler's variables, for `--endpoint auto`
    worker_command  from SCRIPT and its flags to the workers' command
    plan            from `Arguments` to the agent's `LaunchPlan`
    stdin           the workers' program, if it comes on stdin
    main            the program

Programs (`LaunchConfig`) and torchrun's parameters also fill `Arguments`. This package has no dataclasses: making them
takes longer than reading a command line, and workers wait for it.
"""
