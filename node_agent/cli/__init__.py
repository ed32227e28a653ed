"""The command line of `node-agent`: torchrun's flags beside our own, with their PET_* variables.

    values      readers: a text or a value to the value, or one line that says what the argument takes
    arguments   `Arguments`: every argument once, with its flag, its reader and its default
    parser      the words of a command line, also shortened, and variables, to `Arguments`
    rendezvous  where the nodes meet, from several arguments together
    plan        all of it as the agent's `LaunchPlan`
    main        what the program does with it

Programs (`LaunchConfig`) and torchrun's parameters fill `Arguments`, too. No dataclasses here: making
them takes longer than reading a command line, and workers wait for it.
"""
